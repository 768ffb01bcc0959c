"""Without being asked, programs replace only models whose code is all that of libraries, and only while it is the same.

Each test does to a model what users do, and compares with the model itself, to the last bit.
"""

import copy
import threading
from functools import partial

import pytest
import torch
from conftest import FAMILIES
from torch import Tensor, nn
from transformers import ViTForImageClassification
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.vit import modeling_vit
from watched_programs import watch_programs

import whyformer as why
from whyformer._engine.capture.capture import RunSetting, run_setting
from whyformer._engine.program import recording, replay


@pytest.fixture(autouse=True)
def record_at_once(monkeypatch):
    """Every run is recorded the first time; nobody asks for it."""
    monkeypatch.setattr(replay, "RECORDED_AT", 1)
    monkeypatch.setattr(replay, "is_worth_it", lambda device: True)  # as on a GPU
    token = run_setting.set(RunSetting(replay=None, plan=False))
    replay.KNOWN.clear()
    yield
    replay.KNOWN.clear()
    run_setting.reset(token)


@pytest.fixture
def replayed(monkeypatch) -> list[str]:
    """What became of each attempt to use a program."""
    return watch_programs(monkeypatch, lambda: run_setting.get().replay is not False)


def copy_of(animal) -> nn.Module:
    return type(animal.module)(copy.deepcopy(animal.module.config)).double().eval()


def explain_plainly(model, inputs, method, **settings):
    with why.engine(replay=False):
        return why.explain(model, inputs, method, **settings)


def is_same(one: why.Explanation, other: why.Explanation) -> bool:
    return torch.equal(one.scores, other.scores) and one.targets == other.targets and one.notes == other.notes


@pytest.mark.parametrize("method", ["transformer_attribution", "gradient_x_input", "rollout"])
def test_a_model_of_a_library_is_replayed(zoo, replayed, method):
    animal = zoo("bert")
    for _ in range(3):
        found = why.explain(animal.module, animal.inputs, method)
    assert replayed == ["ran", "replayed", "replayed"]
    assert is_same(found, explain_plainly(animal.module, animal.inputs, method))


@pytest.mark.parametrize("name", FAMILIES)
def test_which_models_are_known(zoo, name):
    """The models of transformers are; those of conftest.py are not, whatever they consist of."""
    _, programs = replay.check_programs(zoo(name).module)
    assert programs.state.is_known == (name not in ("encoder", "encoder_token_first", "gpt"))


def test_a_capture_by_itself_is_not_replayed(zoo, replayed):
    model = why.open(zoo("vit").module)
    for _ in range(2):
        why.record(model, model.encode(zoo("vit").inputs), keep={"attention"})
    assert replayed == ["ran", "ran"] and not replay.KNOWN


# --- code of the user ------------------------------------------------------------------------------------------------


class CountingHead(nn.Linear):
    """Counts its calls, as a user's own module may."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        CountingHead.calls += 1
        return super().forward(x)


class OtherWay(ViTForImageClassification):
    """A model of a library with another method."""

    calls = 0

    def get_input_embeddings(self):
        return super().get_input_embeddings()


def use_own_module(module, count):
    head = CountingHead(24, 4).double().eval()
    head.forward = partial(count, head.forward)  # type: ignore[method-assign]
    module.classifier = head


def use_own_activation(module, count):
    mlp = module.vit.layers[0].mlp
    del mlp.activation_fn
    mlp.activation_fn = partial(count, nn.functional.gelu)


def use_own_attention(module, count):
    ALL_ATTENTION_FUNCTIONS.register("counted", partial(count, ALL_ATTENTION_FUNCTIONS["sdpa"]))
    module.config._attn_implementation = "counted"


def use_forward_hook(module, count):
    module.classifier.register_forward_hook(lambda *_: count(lambda: None))


def use_pre_hook(module, count):
    module.classifier.register_forward_pre_hook(lambda *_: count(lambda: None))


@pytest.mark.parametrize(
    "use",
    [use_own_module, use_own_activation, use_own_attention, use_forward_hook, use_pre_hook],
    ids=lambda u: u.__name__,
)
def test_code_of_the_user_runs_every_time(zoo, use):
    module, calls = copy_of(zoo("vit")), []

    def count(function, *args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    use(module, count)
    try:
        counts = []
        for _ in range(3):
            before = len(calls)
            why.explain(module, zoo("vit").inputs, "rollout")
            counts.append(len(calls) - before)
        assert counts[0] >= counts[1] == counts[2] > 0  # the first call also checks the order of tokens
    finally:
        ALL_ATTENTION_FUNCTIONS._local_mapping.pop("counted", None)


def test_a_class_of_the_user_with_methods_of_a_library_is_run_itself(zoo, replayed):
    module = OtherWay(zoo("vit").module.config).double().eval()
    for _ in range(2):
        why.explain(module, zoo("vit").inputs, "rollout")
    assert replayed == ["ran", "ran"]
    with why.engine(replay=True):
        for _ in range(2):
            why.explain(module, zoo("vit").inputs, "rollout")
    assert replayed[2:] == ["ran", "replayed"]


def test_a_method_of_the_user_is_called_every_time(zoo, replayed):
    calls = []

    @why.method(paper="mine", class_specific=False, signed=False)
    def counted(attention, mask):
        """How often this function was called, at every token of the input."""
        calls.append(1)
        return mask.double() * len(calls)

    try:
        found = [float(why.explain(zoo("bert").module, zoo("bert").inputs, "counted").scores.max()) for _ in range(3)]
        assert found == [1, 2, 3] and "replayed" not in replayed
    finally:
        del why.METHODS["counted"]


def test_a_rule_of_the_user_is_called_every_time(zoo, replayed):
    calls = []

    def counted(call, arriving):
        calls.append(1)
        return why.rules.pass_unchanged(call, arriving)

    recipe = why.rules.RECIPES["chefer"].replace("mine", normalise=counted)
    with why.engine(replay=True):
        for _ in range(3):
            why.explain(zoo("vit").module, zoo("vit").inputs, "transformer_attribution", recipe=recipe)
    assert "replayed" not in replayed and len(calls) % 3 == 0


# --- the model changes -----------------------------------------------------------------------------------------------


def replace_function(module, monkeypatch):
    original = modeling_vit.ViTLayer.forward if hasattr(modeling_vit, "ViTLayer") else None
    monkeypatch.setattr(modeling_vit, "a_new_name", original or print, raising=False)


def load_other_weights(module, monkeypatch):
    other = type(module)(module.config).double()
    module.load_state_dict(other.state_dict())


def assign_other_weights(module, monkeypatch):
    other = type(module)(module.config).double()
    module.load_state_dict(other.state_dict(), assign=True)


def start_training(module, monkeypatch):
    module.train()


def choose_other_attention(module, monkeypatch):
    module.set_attn_implementation("eager")


def change_dtype(module, monkeypatch):
    module.float()


def add_backward_hook(module, monkeypatch):
    module.classifier.register_full_backward_hook(lambda *_: None)


def add_global_hook(module, monkeypatch):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    monkeypatch.setattr(module, "handle", handle, raising=False)


CHANGES = (
    replace_function,
    load_other_weights,
    assign_other_weights,
    start_training,
    choose_other_attention,
    change_dtype,
    add_backward_hook,
    add_global_hook,
)


class StandInGraph:
    """Runs a program as a CUDA graph does: the model is compared while it computes."""

    def __init__(self, run):
        self.run_program = run.program.run

    def run(self, inputs, take, meanwhile):
        results = self.run_program(inputs)
        meanwhile()
        return take(results)


@pytest.mark.parametrize(
    ("change", "is_graph"),
    [(change, False) for change in CHANGES]
    + [
        pytest.param(change, True, marks=() if change in (load_other_weights, start_training) else pytest.mark.slow)
        for change in CHANGES
    ],
    ids=lambda value: value.__name__ if callable(value) else "graph" if value else "program",
)
def test_a_changed_model_is_run_itself(zoo, replayed, monkeypatch, change, is_graph):
    torch.manual_seed(0)
    module, inputs = copy_of(zoo("vit")), zoo("vit").inputs
    why.explain(module, inputs, "gradient_x_input", target=0)
    if is_graph:
        why.explain(module, inputs, "gradient_x_input", target=0)
        assert replayed.pop() == "replayed"
        (_, programs), *_ = replay.KNOWN.values()
        (run,) = programs.runs.values()
        run.graph = StandInGraph(run)
    why.explain(module, inputs, "gradient_x_input", target=0)
    change(module, monkeypatch)
    try:
        if change is change_dtype:
            inputs = {name: value.float() for name, value in inputs.items()}
        found = why.explain(module, inputs, "gradient_x_input", target=0)
        assert replayed == ["ran", "replayed", "ran"]
        assert is_same(found, explain_plainly(module, inputs, "gradient_x_input", target=0))
    finally:
        if change is add_global_hook:
            module.handle.remove()


def test_a_model_in_training_is_never_replayed(zoo, replayed):
    module = copy_of(zoo("bert")).train()
    for _ in range(3):
        why.explain(module, zoo("bert").inputs, "rollout")
    assert replayed == ["ran", "ran", "ran"]


def test_two_models_that_share_weights(zoo, replayed):
    one = copy_of(zoo("bert"))
    other = copy.copy(one)
    other._modules = dict(one._modules)
    other.classifier = nn.Linear(24, 4).double().eval()
    inputs = zoo("bert").inputs
    for module in (one, other, one, other):
        why.explain(module, inputs, "gradient_x_input")
    assert replayed == ["ran", "ran", "replayed", "replayed"]
    with torch.no_grad():
        one.bert.encoder.layer[0].attention.self.value.weight.mul_(1.5)
    for module in (one, other):
        found = why.explain(module, inputs, "gradient_x_input")
        assert is_same(found, explain_plainly(module, inputs, "gradient_x_input"))
    assert replayed[4:6] == ["ran", "ran"]


def test_gradients_of_weights_do_not_matter(zoo):
    module, inputs = copy_of(zoo("vit")), zoo("vit").inputs
    expected = explain_plainly(module, inputs, "gradient_x_input")
    for flag in (True, False, True):
        module.requires_grad_(flag)
        assert is_same(why.explain(module, inputs, "gradient_x_input"), expected)
    assert all(weight.grad is None for weight in module.parameters())


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_state_of_torch_around_a_call_does_not_matter(zoo, replayed, around):
    module, inputs = copy_of(zoo("bert")), zoo("bert").inputs
    expected = explain_plainly(module, inputs, "gradient_x_input")
    for _ in range(2):
        with around():
            found = why.explain(module, {name: value.clone() for name, value in inputs.items()}, "gradient_x_input")
        assert is_same(found, expected)
    assert replayed == ["ran", "replayed"]


def test_other_padding_of_the_same_shape(zoo, replayed):
    """Which tokens are padding is part of a program: other padding is another program."""
    module, inputs = zoo("bert").module, zoo("bert").inputs
    turned = {name: value.flip(0) for name, value in inputs.items()}
    for method in ("rollout", "gradient_x_input", "attcat"):
        first = why.explain(module, inputs, method)
        second = why.explain(module, turned, method)
        assert is_same(second, explain_plainly(module, turned, method))
        assert torch.equal(second.scores == 0, first.scores.flip(0) == 0)
    assert "replayed" not in replayed


def test_threads_and_several_targets(zoo):
    model, inputs = why.open(zoo("vit").module), zoo("vit").inputs
    targets = (None, 0, [0, 1, 2], [None, 3, None])
    expected = [explain_plainly(model, inputs, "gradient_x_input", target=target) for target in targets]
    wrong = []

    def work(number: int) -> None:
        for _ in range(3):
            found = why.explain(model, inputs, "gradient_x_input", target=targets[number])
            if not is_same(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_targets_raise_the_usual_errors(zoo, replayed):
    module, inputs = zoo("vit").module, zoo("vit").inputs
    for _ in range(2):
        why.explain(module, inputs, "rollout", target=0, versus=1)
    for _ in range(4):
        with pytest.raises(why.errors.TargetError, match="both"):
            why.explain(module, inputs, "rollout", target=1, versus=1)
        with pytest.raises(why.errors.TargetError, match="no class 99"):
            why.explain(module, inputs, "rollout", target=99, versus=1)
    why.explain(module, inputs, "rollout", target=2, versus=1)
    assert replayed[-1] == "replayed"


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_was_dropped_is_not_recorded_again_at_once(zoo, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_PROGRAMS", 1)
    animal, recorded = zoo("bert"), []
    record = replay.ProgramCall.record
    monkeypatch.setattr(replay.ProgramCall, "record", lambda self: (recorded.append(1), record(self))[1])
    for _ in range(5):
        for length in (3, 4):
            why.explain(animal.module, {name: value[:1, :length] for name, value in animal.inputs.items()}, "rollout")
    assert len(recorded) == 3  # each at once, and the first again after four more runs


def test_all_models_together_have_a_bound(zoo, monkeypatch):
    monkeypatch.setattr(replay, "MOST_PROGRAMS", 2)
    modules = [copy_of(zoo("vit")) for _ in range(3)]
    for module in modules:
        why.explain(module, zoo("vit").inputs, "rollout")
    assert sum(len(programs.runs) for _, programs in replay.KNOWN.values()) == 2


def test_small_results_are_read_in_one_go(monkeypatch):
    monkeypatch.setattr(recording, "LARGEST_PACKED", 48)
    tensors = [
        torch.tensor([True, False, True]),
        torch.arange(5, dtype=torch.float32),
        torch.tensor(0.25, dtype=torch.float64),
        torch.arange(100.0).view(4, 25).T,
        torch.tensor([[3], [4]]),
        torch.tensor([1.5], dtype=torch.bfloat16),
    ]
    packing = recording.Packing(tuple((tensor.shape, tensor.dtype) for tensor in tensors))
    packed = packing.pack(tensors)
    assert [tensor.shape for tensor in packed] == [(3 + 20 + 8 + 16 + 2,), (25, 4)]
    for found, expected in zip(packing.unpack(packed), tensors, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
