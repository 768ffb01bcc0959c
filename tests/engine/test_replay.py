"""Recorded programs: the same scores as the model itself, only where they may be used, and without traces."""

import copy
import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from conftest import FAMILIES, LENGTHS
from torch import Tensor, nn
from watched_programs import watch_programs

import whyformer as why
from whyformer._engine.capture.capture import RoundingEstimate
from whyformer._engine.program import closeness, program, replay
from whyformer._engine.program.closeness import read_torch_state, rounds_to_tf32
from whyformer._engine.run.model_state import ModelState

METHODS = ("transformer_attribution", "gradient_x_input", "rollout")


@pytest.fixture(autouse=True)
def record_at_once(monkeypatch):
    """Every run is recorded the first time."""
    monkeypatch.setattr(replay, "RECORDED_AT", 1)
    replay.KNOWN.clear()
    with why.engine(replay=True, plan=False):
        yield
    replay.KNOWN.clear()


@pytest.fixture
def replayed(monkeypatch) -> list[str]:
    """What became of each attempt to use a program."""
    return watch_programs(monkeypatch)


def make_other_inputs(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of the same shapes and padding with other values."""
    generator = torch.Generator().manual_seed(5)
    if "pixel_values" in inputs:
        shape = inputs["pixel_values"].shape
        return {"pixel_values": torch.randn(shape, generator=generator, dtype=torch.float64)}
    if "idx" in inputs:
        return {"idx": torch.randint(3, 40, inputs["idx"].shape, generator=generator)}
    mask = torch.arange(9)[None] < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(5, 40, mask.shape, generator=generator)
    return {"input_ids": ids.masked_fill(~mask, 1), "attention_mask": mask.long()}


def explain_plainly(model, inputs, method, **settings):
    with why.engine(replay=False):
        return why.explain(model, inputs, method, **settings)


def is_same(one: why.Explanation, other: why.Explanation) -> bool:
    """To the last bit: the same kernels in the same order."""
    return (
        torch.equal(one.scores, other.scores)
        and one.targets == other.targets
        and one.notes == other.notes
        and one.tokens == other.tokens
        and all(torch.equal(one.details[key], other.details[key]) for key in other.details)
    )


# --- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["vit", "bert", "gpt2"])
def test_gives_the_scores_of_the_model_itself_on_other_inputs(zoo, replayed, name, method):
    animal = zoo(name)
    model = why.open(animal.module)
    why.explain(model, animal.inputs, method)
    others = make_other_inputs(animal.inputs)
    again = why.explain(model, others, method)
    assert replayed == ["ran", "replayed"]
    assert is_same(again, explain_plainly(model, others, method))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_quick_method_gives_the_same_on_every_family(zoo, name):
    animal = zoo(name)
    model = why.open(animal.module)
    others = make_other_inputs(animal.inputs)
    for method, described in why.METHODS.items():
        if not described.is_quick:
            continue
        try:
            expected = explain_plainly(model, others, method)
        except why.WhyformerError:
            continue
        why.explain(model, animal.inputs, method)
        assert is_same(why.explain(model, others, method), expected), method


@pytest.mark.parametrize("settings", [{"target": 1}, {"target": [0, 1, 2]}, {"target": 1, "versus": 2}], ids=str)
def test_any_target_uses_the_same_program(zoo, replayed, settings):
    animal = zoo("vit")
    model = why.open(animal.module)
    start = {"versus": 3, "target": 0} if "versus" in settings else {}
    why.explain(model, animal.inputs, "transformer_attribution", **start)
    again = why.explain(model, animal.inputs, "transformer_attribution", **settings)
    assert replayed == ["ran", "replayed"]
    assert is_same(again, explain_plainly(model, animal.inputs, "transformer_attribution", **settings))


def test_other_shapes_settings_and_recipes_have_their_own_programs(zoo, replayed):
    animal = zoo("bert")
    model = why.open(animal.module)
    for inputs, settings in (
        (animal.inputs, {}),
        (animal.alone(0), {}),
        (animal.inputs, {"recipe": "chefer_baseline"}),
        (animal.inputs, {"versus": 1, "target": 0}),
    ):
        found = why.explain(model, inputs, "transformer_attribution", **settings)
        assert is_same(found, explain_plainly(model, inputs, "transformer_attribution", **settings))
    assert "replayed" not in replayed


@pytest.mark.parametrize("name", ["vit", "bert"])
@pytest.mark.parametrize("recompute", [False, True])
def test_computing_again_changes_memory_only(zoo, monkeypatch, name, recompute):
    monkeypatch.setattr(program, "RECOMPUTED_ABOVE", 0)
    monkeypatch.setattr("whyformer._engine.program.rematerialise.SMALLEST", 1)
    monkeypatch.setattr("whyformer._engine.program.rematerialise.APART", 40)
    animal = zoo(name)
    model = why.open(animal.module)
    with why.engine(replay=True, recompute=recompute):
        why.explain(model, animal.inputs, "transformer_attribution")
        again = why.explain(model, animal.inputs, "transformer_attribution")
    assert is_same(again, explain_plainly(model, animal.inputs, "transformer_attribution"))
    (_, programs), *_ = replay.KNOWN.values()
    (run,) = programs.runs.values()
    monkeypatch.setattr(program, "RECOMPUTED_ABOVE", 2**40)
    for _ in range(2):
        why.explain(why.open(animal.module, readout="first"), animal.inputs, "transformer_attribution")
    *_, plain = programs.runs.values()
    assert run.program.peak < plain.program.peak


def test_float32_and_half_precision(zoo):
    for dtype in (torch.float32, torch.bfloat16):
        model = why.open(copy.deepcopy(zoo("vit").module).to(dtype))
        inputs = {"pixel_values": zoo("vit").inputs["pixel_values"].to(dtype)}
        why.explain(model, inputs, "transformer_attribution")
        again = why.explain(model, inputs, "transformer_attribution")
        assert is_same(again, explain_plainly(model, inputs, "transformer_attribution"))


# --- when a program may be used --------------------------------------------------------------------------------------


def copy_of(animal) -> nn.Module:
    return type(animal.module)(animal.module.config).double().eval()


def change_weight(module):
    with torch.no_grad():
        module.classifier.weight.mul_(2)


def replace_weight(module):
    module.classifier.weight = nn.Parameter(module.classifier.weight.detach() * 2)


def swap_data(module):
    module.classifier.weight.data = module.classifier.weight.data * 2


def replace_module(module):
    module.classifier = nn.Linear(24, 4).double()


def change_setting(module):
    module.vit.layernorm.eps = 0.5


def change_list(module):
    module.classifier.kept[0] = 2.0


def change_config(module):
    module.config.some_setting = "another"


def add_hook(module):
    module.classifier.register_forward_hook(lambda _, __, result: result * 2)


def replace_forward(module):
    module.classifier.forward = lambda x: nn.functional.linear(x, module.classifier.weight * 2)


CHANGES = (
    change_weight,
    replace_weight,
    swap_data,
    replace_module,
    change_setting,
    change_list,
    change_config,
    add_hook,
    replace_forward,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_is_run_itself(zoo, replayed, change):
    module = copy_of(zoo("vit"))
    module.classifier.kept = [1.0]
    inputs = zoo("vit").inputs
    for _ in range(2):
        why.explain(module, inputs, "rollout")
    change(module)
    try:
        changed = why.explain(module, inputs, "rollout")
        assert replayed == ["ran", "replayed", "ran"]
        assert is_same(changed, explain_plainly(module, inputs, "rollout"))
    except why.WhyformerError:
        assert change is replace_forward  # refused with and without programs


def test_weights_written_to_through_data_are_read_anew(zoo):
    """`weight.data` leaves no trace that a program could check, so a program never holds what was made of weights."""
    module = copy.deepcopy(zoo("bert").module)
    for method in METHODS:
        why.explain(module, zoo("bert").inputs, method, target=0)
    for weight in module.parameters():
        weight.data.mul_(1.25)
    for method in METHODS:
        found = why.explain(module, zoo("bert").inputs, method, target=0)
        expected = explain_plainly(module, zoo("bert").inputs, method, target=0)
        torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("setting", ["default_dtype", "anomaly"])
def test_another_state_of_torch_is_not_replayed(zoo, replayed, setting):
    animal = zoo("vit")
    why.explain(animal.module, animal.inputs, "rollout")
    try:
        if setting == "default_dtype":
            torch.set_default_dtype(torch.float64)
            why.explain(animal.module, animal.inputs, "rollout")
        else:
            with torch.autograd.set_detect_anomaly(True):
                why.explain(animal.module, animal.inputs, "rollout")
    finally:
        torch.set_default_dtype(torch.float32)
    assert replayed == ["ran", "ran"]


def test_is_recorded_only_after_several_runs(zoo, replayed, monkeypatch):
    monkeypatch.setattr(replay, "RECORDED_AT", 3)
    for _ in range(4):
        why.explain(zoo("vit").module, zoo("vit").inputs, "rollout")
    assert replayed == ["ran", "ran", "ran", "replayed"]


def test_can_be_switched_off(zoo, replayed):
    animal = zoo("vit")
    for _ in range(2):
        with why.engine(replay=False):
            why.explain(animal.module, animal.inputs, "rollout")
    assert replayed == ["ran", "ran"] and not replay.KNOWN


class Branching(nn.Module):
    """Takes another way for inputs with a negative sum; `reads` is how it looks at them."""

    def __init__(self, reads):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.reads = reads

    def forward(self, x):
        x = self.layer(x)
        return self.head(x.mean(1)) * (2 if self.reads(x) else 1)


READS = {
    "bool": lambda x: bool(x.sum() > 0),
    "item": lambda x: (x.sum() > 0).item(),
    "int": lambda x: int((x > 0).sum()) % 2,
    "equal": lambda x: torch.equal(x, x.abs()),
    "tolist": lambda x: x.detach().sum().tolist() > 0,
    "numpy": lambda x: x.detach().sum().numpy() > 0,
    "float": lambda x: float(x.detach().sum()) > 0,
    "nonzero": lambda x: len((x > 0).nonzero()) % 2,
    "random": lambda x: torch.rand(1).item() > 2,
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS.keys())
def test_a_model_that_looks_at_its_inputs_takes_its_own_way(reads):
    torch.manual_seed(0)
    module = Branching(reads).double().eval()
    inputs = [torch.randn(1, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    for x in inputs:
        assert is_same(why.explain(module, x, "rollout"), explain_plainly(module, x, "rollout"))


def test_a_program_that_never_fits_is_dropped():
    torch.manual_seed(0)
    module = Branching(READS["int"]).double().eval()
    for seed in range(12):
        x = torch.randn(1, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        why.explain(module, x, "rollout")
    (_, programs), *_ = replay.KNOWN.values()
    assert list(programs.runs.values()) == ["the model takes other branches too often"]


class HiddenTable(nn.Module):
    """Uses a tensor that is no weight and changes between calls."""

    table = torch.ones(8, dtype=torch.float64)

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x * HiddenTable.table).mean(1))


def test_tensors_that_do_not_belong_to_the_model_are_not_frozen():
    torch.manual_seed(0)
    module, x = HiddenTable().double().eval(), torch.randn(1, 4, 8, dtype=torch.float64)
    first = why.explain(module, x, "gradient_x_input")
    HiddenTable.table = torch.full((8,), 3.0, dtype=torch.float64)
    try:
        second = why.explain(module, x, "gradient_x_input")
        assert not torch.equal(first.scores, second.scores)
        assert is_same(second, explain_plainly(module, x, "gradient_x_input"))
    finally:
        HiddenTable.table = torch.ones(8, dtype=torch.float64)


def test_bad_inputs_raise_the_usual_errors(zoo):
    animal = zoo("vit")
    why.explain(animal.module, animal.inputs, "rollout")
    with pytest.raises(why.errors.NonFinite, match="output is not finite"):
        why.explain(animal.module, {"pixel_values": animal.inputs["pixel_values"] * 1e300}, "rollout")
    with pytest.raises(why.errors.TargetError, match="no class 77"):
        why.explain(animal.module, animal.inputs, "rollout", target=77)


# --- nothing is left behind ------------------------------------------------------------------------------------------


def test_model_and_inputs_are_untouched(zoo):
    module = copy_of(zoo("vit"))
    inputs = {"pixel_values": zoo("vit").inputs["pixel_values"].clone()}
    before = ModelState(module)
    attributes = {name: set(vars(part)) for name, part in module.named_modules()}
    for _ in range(2):
        why.explain(module, inputs, "transformer_attribution")
    assert ModelState(module).is_same(before)
    assert {name: set(vars(part)) for name, part in module.named_modules()} == attributes
    tensors = [*module.parameters(), *module.buffers(), *inputs.values()]
    assert not any(hasattr(tensor, "_whyformer_slot") or tensor.grad is not None for tensor in tensors)


def test_programs_are_freed_with_their_model(zoo):
    module = copy_of(zoo("vit"))
    for _ in range(2):
        why.explain(module, zoo("vit").inputs, "transformer_attribution")
    alive = weakref.ref(module)
    assert len(replay.KNOWN) == 1
    del module
    gc.collect()
    assert alive() is None and not replay.KNOWN


def test_the_number_of_programs_is_bounded(zoo, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_PROGRAMS", 2)
    animal = zoo("bert")
    for length in (3, 4, 5, 6):
        inputs = {name: value[:1, :length] for name, value in animal.inputs.items()}
        why.explain(animal.module, inputs, "rollout")
    (_, programs), *_ = replay.KNOWN.values()
    assert len(programs.runs) == 2


def test_results_may_be_written_to(zoo):
    animal = zoo("vit")
    model = why.open(animal.module)
    keep = {"attention", "readout", "mask", "special", "hidden"}
    for _ in range(2):
        capture = why.record(model, model.encode(animal.inputs), keep=keep)
    capture["mask"].logical_not_()
    capture["readout"].zero_()
    capture["hidden"][0].zero_()
    again = why.record(model, model.encode(animal.inputs), keep=keep)
    assert bool(again["mask"].all()) and float(again["readout"].sum()) == 3 and bool(again["hidden"][0].any())


def test_threads_share_programs(zoo):
    animal = zoo("bert")
    model = why.open(animal.module)
    methods = ("rollout", "gradient_x_input")
    expected = {method: explain_plainly(model, animal.inputs, method) for method in methods}
    wrong: list[str] = []

    def work(method: str) -> None:
        for _ in range(4):
            if not is_same(why.explain(model, animal.inputs, method), expected[method]):
                wrong.append(method)

    threads = [threading.Thread(target=work, args=(methods[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def tf32(request):
    """Products on a GPU in TF32, set in one of three ways."""
    matmul = torch.backends.cuda.matmul
    if request.param == "fp32_precision":
        before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
        yield
        matmul.fp32_precision = before
        return
    before = torch.get_float32_matmul_precision()
    if request.param == "allow_tf32":
        matmul.allow_tf32 = True
    else:
        torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_products_are_not_rounded_to_tf32_unless_asked_for():
    assert not rounds_to_tf32(torch.device("cuda"))


@pytest.mark.parametrize("tf32", ["set_float32_matmul_precision", "allow_tf32", "fp32_precision"], indirect=True)
def test_tf32_is_seen_however_it_is_set(tf32):
    assert read_torch_state()  # torch raises where settings of two kinds are mixed
    assert rounds_to_tf32(torch.device("cuda"))
    assert not rounds_to_tf32(torch.device("cpu"))


@pytest.mark.parametrize("tf32", ["fp32_precision"], indirect=True)
def test_a_model_is_explained_while_the_precision_is_set(zoo, tf32, replayed):
    animal = zoo("vit")
    model = why.open(animal.module)
    for _ in range(2):
        why.explain(model, animal.inputs, "gradient_x_input")
    assert replayed == ["ran", "replayed"]


@pytest.mark.parametrize(
    ("estimate", "is_tf32", "narrow", "wide"),
    [
        (1e-7, False, 1e-4, 1e-4),
        (1e-3, False, 1e-4, 4e-3),
        (0.5, False, 1e-4, 0.1),
        (1e-7, True, 1e-2, 1e-2),
        (1e-5, True, 1e-2, 4e-5 * 2**13),
        (0.5, True, 1e-2, 1.0),
    ],
)
def test_tolerance_follows_the_precision_of_products(estimate, is_tf32, narrow, wide):
    rounded = SimpleNamespace(rounding={"recipe": RoundingEstimate(torch.tensor([[0.0, estimate]]))})
    assert closeness.find_tolerances(rounded, is_tf32=is_tf32) == pytest.approx((narrow, wide))
