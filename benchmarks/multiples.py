"""Methods as multiples of one plain forward pass, beside other libraries: one table and one figure per run.

    python benchmarks/multiples.py --out build/benchmark                      small models, on this CPU
    python benchmarks/multiples.py --device cuda --models vit_b16 bert_512 llama_1b --batch 1 8 32 128 --tf32
    python benchmarks/multiples.py --models gpt2 --methods attnlrp --no-growth
    python benchmarks/multiples.py --read a/benchmark.json b/benchmark.json --out both

Ours, a plain forward pass, the plain reference (reference.py) and what can be imported of captum, autoLRP, LXT and
grad-cam take turns in one process; a multiple is a ratio of two medians of the same turns. LXT replaces functions of
torch and transformers for the whole process, so it runs in a process of its own, beside the forward of the model it
changed. Weights are random. The figure has the multiples, and how time grows with batch, tokens and layers.

Others are optional: python -m pip install captum autolrp lxt grad-cam. Those that are missing are named in the output.
"""

import argparse
import contextlib
import importlib
import json
import platform
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from speed import METHODS, TEXT, VITS, make_vit, measure_peak, measure_time
from torch import Tensor, nn

import whyformer as why

Work = Callable[[], object]
SMALL = ("vit_tiny", "text12", "bert_128", "gpt2")
GROWING = ("forward", "transformer_attribution", "attnlrp", "gradient_x_input", "rollout")


class Absent(Exception):
    """A library that is not installed, or that has nothing for this model."""


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, how it is called and what is explained."""

    module: nn.Module
    model: why.Model
    given: Any  # what explain() gets
    inputs: dict[str, Tensor]  # what the module gets

    def logits(self) -> Tensor:
        """[batch class]"""
        found = self.module(**self.inputs).logits
        return found[:, -1] if found.dim() == 3 else found


def make_case(name: str, batch: int, device: str, *, tokens: int | None = None, layers: int | None = None) -> Case:
    torch.manual_seed(0)
    if name == "text12":
        model = why.open("demo/sentiment", device=device)
        given = [TEXT] * batch
        return Case(model.module, model, given, model.encode(given).inputs)
    if name in VITS:
        module = make_vit(name).to(device)
        pixels = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1)).to(device)
        return Case(module, why.open(module), pixels, {"pixel_values": pixels})
    module, length = TEXT_MODELS[name](tokens, layers)
    module = module.eval().to(device)
    ids = torch.randint(5, 1000, (batch, length), generator=torch.Generator().manual_seed(1)).to(device)
    return Case(module, why.open(module), {"input_ids": ids}, {"input_ids": ids})


def make_bert(tokens: int | None, layers: int | None, length: int = 128) -> tuple[nn.Module, int]:
    tokens = tokens or length
    config = transformers.BertConfig(num_hidden_layers=layers or 12, max_position_embeddings=max(512, tokens))
    return transformers.BertForSequenceClassification(config), tokens


def make_small_bert(tokens: int | None, layers: int | None) -> tuple[nn.Module, int]:
    config = transformers.BertConfig(
        hidden_size=256, num_attention_heads=4, intermediate_size=1024, num_hidden_layers=layers or 4, vocab_size=1000,
        max_position_embeddings=4096,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config), tokens or 128


def make_gpt2(tokens: int | None, layers: int | None) -> tuple[nn.Module, int]:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers or 12)), tokens or 128


def make_llama(tokens: int | None, layers: int | None) -> tuple[nn.Module, int]:
    """The shape of Llama 3.2 1B."""
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers or 16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokens or 512


TEXT_MODELS: dict[str, Callable[[int | None, int | None], tuple[nn.Module, int]]] = {
    "bert_128": make_bert,
    "bert_512": lambda tokens, layers: make_bert(tokens, layers, 512),
    "bert_small": make_small_bert,
    "gpt2": make_gpt2,
    "llama_1b": make_llama,
}
MODELS = ("text12", *VITS, *TEXT_MODELS)


# --- other libraries --------------------------------------------------------------------------------------------------


def prepare_reference(name: str, case: Case) -> Work:
    if name not in VITS or len(case.inputs["pixel_values"]) > 8:
        raise Absent("the reference is written for ViT, and for one image at a time")
    from reference import transformer_attribution

    images = case.inputs["pixel_values"]
    return lambda: [transformer_attribution(case.module, image[None], 7) for image in images]


def prepare_captum(name: str, case: Case) -> Work:
    """Gradient times input: of pixels, or of the embeddings of tokens."""
    attr = import_optional("captum.attr")
    if name in VITS:
        by = attr.InputXGradient(lambda pixels: case.module(pixel_values=pixels).logits)
        return lambda: by.attribute(case.inputs["pixel_values"].clone().requires_grad_(), target=7)

    def ask(input_ids: Tensor) -> Tensor:
        found = case.module(**{**case.inputs, "input_ids": input_ids}).logits
        return found[:, -1] if found.dim() == 3 else found

    by = attr.LayerGradientXActivation(ask, case.module.get_input_embeddings())
    return lambda: by.attribute(case.inputs["input_ids"], target=1)


def prepare_autolrp(name: str, case: Case) -> Work:
    """AttnLRP by operations, down to pixels or embeddings; one example after another."""
    autolrp = import_optional("autolrp")
    rules = autolrp.LRPConfig.attnlrp()

    def explain(number: int) -> Tensor:
        given = {key: value[number : number + 1] for key, value in case.inputs.items()}
        key, values = "pixel_values", given.get("pixel_values")
        if "input_ids" in given:
            key, values = "inputs_embeds", case.module.get_input_embeddings()(given.pop("input_ids")).detach()
        leaf = autolrp.tensor(values)
        logits = case.module(**{**given, key: leaf}).logits
        (logits[0, -1] if logits.dim() == 3 else logits[0])[1].lrp(config=rules)
        return leaf.relevance

    return lambda: [explain(number) for number in range(len(next(iter(case.inputs.values()))))]


def prepare_grad_cam(name: str, case: Case) -> Work:
    """Grad-CAM of the last block; its maps are resized on the CPU."""
    if name not in VITS:
        raise Absent("grad-cam is for images")
    add_stand_in("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
    add_stand_in("ttach")
    cam = import_optional("pytorch_grad_cam", "grad-cam")

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = case.module

        def forward(self, pixels: Tensor) -> Tensor:
            return self.inner(pixel_values=pixels).logits

    def to_grid(states: Tensor) -> Tensor:
        return states[:, 1:].unflatten(1, (14, 14)).permute(0, 3, 1, 2)

    last = case.module.vit.layers[-1].layernorm_before
    by = cam.GradCAM(model=Logits(), target_layers=[last], reshape_transform=to_grid)
    targets = [cam.utils.model_targets.ClassifierOutputTarget(7)] * len(case.inputs["pixel_values"])
    return lambda: by(input_tensor=case.inputs["pixel_values"], targets=targets)


OTHERS: dict[str, Callable[[str, Case], Work]] = {
    "reference: transformer_attribution": prepare_reference,
    "captum: gradient_x_input": prepare_captum,
    "autoLRP: attnlrp": prepare_autolrp,
    "grad-cam: grad_cam": prepare_grad_cam,
}
LXT, LXT_MODELS = "LXT: attnlrp", {"gpt2": "gpt2", "llama_1b": "llama"}


def import_optional(module: str, package: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        raise Absent(f"{name} cannot be imported ({error}); python -m pip install {name}") from None


def add_stand_in(*names: str) -> None:
    """Empty modules for what a library imports and this benchmark does not use."""
    with contextlib.suppress(ImportError):
        importlib.import_module(names[0])
        return
    for name in names:
        stand_in = types.ModuleType(name)
        stand_in.__getattr__ = lambda _: type("NotInstalled", (), {})  # type: ignore[method-assign]
        stand_in.__path__ = []
        stand_in.nn = nn
        sys.modules[name] = stand_in
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, stand_in)


def patch_for_lxt(family: str) -> None:
    """LXT's rules for AttnLRP, in a transformers that has moved two things LXT expects."""
    import transformers.pytorch_utils

    add_stand_in("torchvision", "torchvision.models", "torchvision.models.vision_transformer")
    add_stand_in("zennit", "zennit.composites", "zennit.rules", "zennit.layer", "zennit.core", "zennit.types")
    if not hasattr(transformers.pytorch_utils, "find_pruneable_heads_and_indices"):
        transformers.pytorch_utils.find_pruneable_heads_and_indices = None  # type: ignore[attr-defined]
    lxt_models = import_optional(f"lxt.efficient.models.{family}", "lxt")
    lxt = import_optional("lxt.efficient")
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    lxt.monkey_patch(modeling, lxt_models.attnLRP)
    modeling.ALL_ATTENTION_FUNCTIONS = AttentionFunctions(modeling.ALL_ATTENTION_FUNCTIONS)


class AttentionFunctions(dict[str, Any]):
    """What transformers calls its table of attention functions for, which LXT makes a plain dictionary."""

    def get_interface(self, name: str, default: Any) -> Any:
        return self.get(name, default)


def run_lxt(options: argparse.Namespace) -> None:
    """In a process of its own: the seconds of a forward and of an explanation, as JSON on the last line."""
    name, batch = options.lxt, options.batch[0]
    try:
        patch_for_lxt(LXT_MODELS[name])
    except Absent as error:
        print(json.dumps({"absent": str(error)}))
        return
    case = make_case(name, batch, options.device)
    for parameter in case.module.parameters():
        parameter.requires_grad_(False)

    def explain() -> Tensor:
        words = case.module.get_input_embeddings()(case.inputs["input_ids"]).detach().requires_grad_()
        logits = case.module(inputs_embeds=words, use_cache=False).logits[:, -1]
        logits.max(-1).values.sum().backward()
        assert words.grad is not None
        return (words * words.grad).sum(-1)

    print(json.dumps(take_turns({"forward": plain_forward(case), LXT: explain}, options)))


def ask_lxt(name: str, batch: int, options: argparse.Namespace) -> dict[str, list[float]]:
    if name not in LXT_MODELS:
        raise Absent("LXT's rules are for GPT-2 and Llama here")
    asked = [sys.executable, __file__, "--lxt", name, "--batch", str(batch), "--device", options.device]
    asked += ["--threads", str(options.threads), "--repeats", str(options.repeats)] + ["--tf32"] * options.tf32
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines() or ["no answer"]
    if done.returncode:
        raise Absent(f"LXT failed: {(done.stderr.strip().splitlines() or lines)[-1]}")
    found = json.loads(lines[-1])
    if "absent" in found:
        raise Absent(found["absent"])
    return found


# --- measuring --------------------------------------------------------------------------------------------------------


def plain_forward(case: Case) -> Work:
    @torch.no_grad()
    def forward() -> None:
        case.logits()

    return forward


def choose_clock(options: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if options.device == "cpu" and options.clock == "process" else time.perf_counter


def take_turns(works: Mapping[str, Work], options: argparse.Namespace) -> dict[str, list[float]]:
    """The seconds of every work in every turn. All but very slow works run until their program is recorded."""
    clock = choose_clock(options)
    warm = {}
    for label, work in works.items():
        warm[label] = measure_time(work, options.device, clock)
        for _ in range(8 if warm[label] < 1.0 else 1):
            warm[label] = measure_time(work, options.device, clock)
    turns = max(3, min(options.repeats, int(options.seconds * len(works) / sum(warm.values()))))
    times: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(turns):
        for label, work in works.items():
            times[label].append(measure_time(work, options.device, clock))
    return times


def measure_case(name: str, batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each work: its multiple of the forward, milliseconds and MiB for one example."""
    case = make_case(name, batch, options.device)
    works: dict[str, Work] = {"forward": plain_forward(case)}
    for method in options.methods:
        works[method] = lambda method=method: why.explain(case.model, case.given, method)
    rows = []
    for label, prepare in {} if options.no_others else OTHERS.items():  # type: ignore[attr-defined]
        try:
            works[label] = prepare(name, case)
            works[label]()
        except Absent as error:
            note_absent(label, str(error))
            works.pop(label, None)
    with why.engine(replay=not options.no_replay):
        times = take_turns(works, options)
        peaks = {label: measure_peak(work, options.device) for label, work in works.items()}
    forward = statistics.median(times["forward"])
    for label, seconds in times.items():
        took = statistics.median(seconds)
        rows.append(make_row(name, batch, label, took / forward, took, peaks[label]))
    if not options.no_others:
        try:
            found = ask_lxt(name, batch, options)
            took, own = statistics.median(found[LXT]), statistics.median(found["forward"])
            rows.append(make_row(name, batch, LXT, took / own, took, 0.0))
        except Absent as error:
            note_absent(LXT, str(error))
    return rows


def make_row(name: str, batch: int, label: str, multiple: float, seconds: float, peak: float) -> dict[str, Any]:
    row = {"model": name, "batch": batch, "work": label, "multiple": round(multiple, 3),
           "ms": round(1e3 * seconds / batch, 4), "mib": round(peak * 1024 / batch, 1)}  # fmt: skip
    print(
        f"{name:10s} {batch:5d}  {label:36s} {multiple:8.2f} x {row['ms']:10.3f} ms {row['mib']:9.1f} MiB", flush=True
    )
    return row


told: set[str] = set()


def note_absent(label: str, why_not: str) -> None:
    library = label.partition(":")[0]
    if "python -m pip" in why_not or "failed" in why_not:
        told.add(f"{library}: {why_not}")


def measure_growth(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds by the number of tokens and of layers, in a small BERT (256 wide)."""
    is_cpu = options.device == "cpu"
    lengths = (64, 128, 256, 512) if is_cpu else (128, 256, 512, 1024, 2048, 4096)
    depths = (2, 4, 8) if is_cpu else (2, 4, 8, 16, 32)
    batches = (1, 2, 4, 8) if is_cpu else (1, 4, 16, 64, 256)
    points = [("tokens", n, dict(tokens=n, layers=4, batch=1)) for n in lengths]
    points += [("layers", n, dict(tokens=128, layers=n, batch=1)) for n in depths]
    points += [("batch", n, dict(tokens=128, layers=4, batch=n)) for n in batches]
    rows = []
    for axis, size, shape in points:
        case = make_case("bert_small", shape["batch"], options.device, tokens=shape["tokens"], layers=shape["layers"])
        works: dict[str, Work] = {"forward": plain_forward(case)}
        for method in GROWING[1:]:
            works[method] = lambda case=case, method=method: why.explain(case.model, case.given, method)
        with why.engine(replay=not options.no_replay):
            times = take_turns(works, options)
        rows += [
            {"axis": axis, "size": size, "work": label, "ms": round(1e3 * statistics.median(seconds), 4)}
            for label, seconds in times.items()
        ]
        shown = ", ".join(f"{row['work']} {row['ms']:.1f}" for row in rows[-len(works) :])
        print(f"growth: {size} {axis}: {shown} ms", flush=True)
    return rows


# --- table and figure -------------------------------------------------------------------------------------------------


def write_table(rows: Sequence[Mapping[str, Any]], machine: str) -> str:
    """Markdown: a line for each model and batch, a column for each work; milliseconds, then multiples."""
    works = list(dict.fromkeys(row["work"] for row in rows))
    cells = {(row["model"], row["batch"], row["work"]): row for row in rows}
    lines = [machine, ""]
    for title, write in (
        ("Multiples of a plain forward", lambda row: f"{row['multiple']:.2f}"),
        ("Milliseconds for one example", lambda row: f"{row['ms']:.3g}" if row["ms"] < 100 else f"{row['ms']:.0f}"),
    ):
        lines += [f"{title}:", "", "| model | batch | " + " | ".join(works) + " |", "|---" * (2 + len(works)) + "|"]
        for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in rows):
            found = [cells.get((model, batch, work)) for work in works]
            shown = [write(row) if row is not None else "" for row in found]
            lines.append(f"| {model} | {batch} | " + " | ".join(shown) + " |")
        lines.append("")
    return "\n".join([*lines, *(f"* {line}" for line in sorted(told))]).rstrip() + "\n"


def draw_figure(
    rows: Sequence[Mapping[str, Any]], growth: Sequence[Mapping[str, Any]], machine: str, path: Path
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "multiples"
    grown = [axis for axis in ("batch", "tokens", "layers") if any(row["axis"] == axis for row in growth)]
    count = 1 + len(grown)
    across = 1 if count == 1 else 2
    figure, axes = plt.subplots(
        -(-count // across), across, figsize=(6 * across, 4 * -(-count // across)), layout="constrained", squeeze=False
    )
    draw_multiples(axes[0, 0], rows)
    for place, axis in zip(axes.flat[1:], grown, strict=False):
        draw_growth(place, [row for row in growth if row["axis"] == axis], axis)
    for place in axes.flat[count:]:
        place.set_axis_off()
    figure.suptitle(machine, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def draw_multiples(place: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Bars: the multiples of every work, for the smallest batch of each model."""
    first = {model: min(row["batch"] for row in rows if row["model"] == model) for model in {r["model"] for r in rows}}
    shown = [row for row in rows if row["batch"] == first[row["model"]] and row["work"] != "forward"]
    works = list(dict.fromkeys(row["work"] for row in shown))
    models = list(dict.fromkeys(row["model"] for row in shown))
    height = 0.8 / max(len(models), 1)
    for number, model in enumerate(models):
        mine = [row for row in shown if row["model"] == model]
        at = [works.index(row["work"]) + (number - (len(models) - 1) / 2) * height for row in mine]
        place.barh(at, [row["multiple"] for row in mine], height, label=f"{model}, batch {first[model]}")
    place.set_yticks(range(len(works)), works, fontsize=8)
    place.invert_yaxis()
    place.set_xlabel("forwards")
    place.legend(fontsize=7)


def draw_growth(place: Any, rows: Sequence[Mapping[str, Any]], axis: str) -> None:
    for work in dict.fromkeys(row["work"] for row in rows):
        mine = [row for row in rows if row["work"] == work]
        place.plot([row["size"] for row in mine], [row["ms"] for row in mine], marker="o", label=work)
    place.set_xscale("log", base=2)
    place.set_yscale("log")
    place.set_xlabel(f"{axis} (BERT, 256 wide)")
    place.set_ylabel("ms")
    if rows:
        place.legend(fontsize=7)


def describe_machine(options: argparse.Namespace) -> str:
    where = f"{options.threads} thread(s) of a CPU ({platform.machine()})"
    if options.device != "cpu":
        where = f"{torch.cuda.get_device_name()}, {'TF32' if options.tf32 else 'strict float32'}"
    return f"{where}, torch {torch.__version__}, transformers {transformers.__version__}, whyformer {why.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SMALL), choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="for one work in all its turns, roughly")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["process", "wall"], default="process", help="on the CPU")
    parser.add_argument("--tf32", action="store_true", help="let matrix products round to TF32")
    parser.add_argument("--no-replay", action="store_true", help="without recorded programs")
    parser.add_argument("--no-others", action="store_true", help="without other libraries")
    parser.add_argument("--no-growth", action="store_true", help="without growth by tokens, layers and batch")
    parser.add_argument("--out", type=Path, help="a folder for benchmark.md, benchmark.svg and benchmark.json")
    parser.add_argument("--read", type=Path, nargs="+", help="benchmark.json of other runs: one table of all of them")
    parser.add_argument("--lxt", choices=LXT_MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
    if options.lxt:
        run_lxt(options)
        return
    if options.read:
        stored = [json.loads(path.read_text()) for path in options.read]
        report = Report(stored[0]["machine"], [row for one in stored for row in one["rows"]])
        report.growth = [row for one in stored for row in one["growth"]]
        told.update(line for one in stored for line in one["absent"])
    else:
        report = Report(describe_machine(options))
        measure_all(report, options)
    print(f"\n{write_table(report.rows, report.machine)}")
    if options.out is not None:
        report.save(options.out)
        draw_figure(report.rows, report.growth, report.machine, options.out / "benchmark.svg")


def measure_all(report: "Report", options: argparse.Namespace) -> None:
    """Every model and batch, then growth; what was measured is saved after each of them."""
    print(report.machine)
    for name in options.models:
        for batch in options.batch:
            try:
                report.rows += measure_case(name, batch, options)
            except torch.OutOfMemoryError:
                print(f"{name} {batch}: out of memory")
                torch.cuda.empty_cache()
            if options.out is not None:
                report.save(options.out)
    if not options.no_growth:
        report.growth += measure_growth(options)


@dataclass
class Report:
    """What one run measured."""

    machine: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    growth: list[dict[str, Any]] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "benchmark.md").write_text(write_table(self.rows, self.machine))
        (folder / "benchmark.json").write_text(json.dumps({**vars(self), "absent": sorted(told)}))


if __name__ == "__main__":
    main()
