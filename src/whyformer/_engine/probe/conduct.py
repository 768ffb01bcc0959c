r"""How a model behaves, seen once: by chance, with its rows touching each other, with gradients of its own making.

One more forward than the explained one, of a few rows: the first example, another one, the first one moved a little
along random directions $\pm d$, and the first one again. The first and the last row must give what the explained run
gave, and the moved rows what the gradient $g$ of the code says, $s(x + d) - s(x - d) = 2\,g \cdot d$ up to rounding and
curvature, for a random weighted sum $s$ of the outputs. If the first or the last row differs, the example runs twice
more, alone: two equal calls that differ are random, else rows touch each other (a statistic of the batch, experts with
a capacity). Library code is looked at only where it draws random numbers.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from whyformer._engine.layout.order_probe import make_other_input
from whyformer._engine.probe.batching import count_rows
from whyformer._engine.run.forward import run_forward, run_plain
from whyformer._engine.run.graph import compute_gradients
from whyformer._engine.run.intercept import Intercept, is_joined
from whyformer._engine.run.model_code import are_modules_known
from whyformer._engine.run.model_memory import learnt
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.tracing.provenance import axis_of, trace_of
from whyformer._model import EncodedBatch, Model, count_streams, list_modules, pick_examples, unwrap
from whyformer.errors import InputError

# By which factor each row is moved: the example, another one, the example in two directions and, last, as it is.
ROWS, STILL = torch.tensor([0, 0, 1, -1, 1, -1, 0]), torch.tensor([0, 0, 0])
STEPS = {torch.float64: 1e-4, torch.float32: 1e-2}  # of the spread of the input
ROUNDING = 1000  # times the precision: how far the same row may be apart in two batches
WRONG_SLOPE = 0.1  # of the change; what curvature adds is below
AT_RANDOM = "The model answers at random"
SLOPES = "The gradients of this model's code are not those of what it computes"
MEANWHILE = "Methods that read gradients or relevance explain what the code defines, leave_one_out what it computes."


@dataclass(frozen=True)
class Conduct:
    """Sizes as shares of the largest output; 0 where nothing was found."""

    noise: float = 0.0  # the distance of two equal calls
    touch: float = 0.0  # how far an answer moves with the other rows of its batch
    joins: bool = False  # rows may touch, though these did not: a statistic of the batch, a rule for all of it
    runs_alone: bool = True  # where rows touch
    slope: float | None = None  # the change that a small step makes, over the one that the gradient says

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if self.noise:
            found.append(
                f"{AT_RANDOM}: two equal calls differ by {self.noise:.0%} of the largest output, so "
                "scores differ from call to call. samples=20 averages the scores of 20 runs."
            )
        if self.touch:
            done = "was run alone" if self.runs_alone else "belongs to its batch: the model cannot run one alone"
            found.append(
                "The answer to an example depends on the others in its batch (another one moved it by "
                f"{self.touch:.0%} of the largest output), so every example and every variant {done}."
            )
        elif self.joins:
            found.append(
                "The model reads all examples of a batch together (a statistic of the batch, a rule for all of it), so "
                "every example and every variant was run alone."
            )
        if self.slope is not None:
            share = f"{self.slope:.2g} times what they say" if self.slope < torch.inf else "something; they say 0"
            found.append(f"{SLOPES}: a small step changed the output by {share}. {MEANWHILE}")
        return tuple(found)


def see_conduct(model: Model, encoded: EncodedBatch, output: Tensor, *, draws: bool) -> Conduct:
    """How the model behaves on such inputs; from now on it runs rows alone if they touch each other.

    output: of the explained run. draws: that run has drawn random numbers.
    """
    module, conduct = unwrap(model.module), Conduct()
    learnt(module).runs_alone = False
    is_checkable = encoded.pictures is None and not count_streams(encoded) and output.shape[:1] == (encoded.batch,)
    is_library_code = are_modules_known(list_modules(module)) and not type(module).__module__.startswith("torch.")
    if is_checkable and (draws or not is_library_code):
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices), suppress(Exception):  # whatever another batch meets in the user's code
            conduct = find_conduct(model, encoded, output, draws=draws)
    learnt(module).runs_alone = bool(conduct.touch or conduct.joins) and conduct.runs_alone
    return conduct


def find_conduct(model: Model, encoded: EncodedBatch, output: Tensor, *, draws: bool) -> Conduct:
    first = pick_examples(encoded, torch.tensor([0]))
    fitting = count_rows(model, encoded.inputs[encoded.main].size(-1), with_graph=True)
    rows = ROWS if fitting >= len(ROWS) else STILL
    batch = join_another(pick_examples(encoded, torch.zeros(len(rows), dtype=torch.long)), first)
    given = batch.inputs[batch.main]
    if given.is_floating_point():
        axis = batch.batch_axis if given.dim() == 3 else 0
        batch = replace(batch, inputs={**batch.inputs, batch.main: given + make_steps(given, axis, rows)})
    mode = partial(MovedRows, rows=rows)
    with run_forward(model, batch, asks_gradient=len(rows) > 2, mode_class=mode, widens=True) as run:
        answers = run.output
        if answers.shape != (len(rows), *output.shape[1:]):  # it answers one example, whatever it is given
            return Conduct(joins=encoded.batch == 1)
        ends = answers.detach()[[0, -1]]
        if all(are_close(own, output[0], model.dtype) for own in ends):
            joins = is_joined(answers) or run.mode.reads_joined  # then all rows move a row
            slope = measure_slope(run.mode, answers, rows) if rows.any() and not joins else None
            return Conduct(slope=slope, joins=joins)
    shadow = make_shadow(model.module)
    try:
        one, other = (run_plain(shadow, first)[0] for _ in range(2))
    except InputError:  # a statistic of one example: it cannot run alone
        return Conduct(touch=max(measure_gap(own, output[0]) for own in ends), runs_alone=False)
    if draws or not are_close(one, other, model.dtype):  # few numbers that are dropped may be the same ones twice
        return Conduct(noise=max(measure_gap(own, one) for own in (other, *ends, output[0])))
    same_here, same_before = (sum(are_close(row, one, model.dtype) for row in rows) for rows in (answers, output))
    if same_here >= 2 and same_before:  # at most in another order
        return Conduct()
    return Conduct(touch=max(measure_gap(own, one) for own in (*ends, output[0])))


def join_another(batch: EncodedBatch, first: EncodedBatch) -> EncodedBatch:
    """The batch with another example as its second row."""
    main = first.inputs[first.main]
    other = make_other_input(first, 0 if main.is_floating_point() else int(main.max()) + 1)
    inputs = {}
    for name, given in batch.inputs.items():
        axis = batch.batch_axis if given.dim() == 3 else 0
        inputs[name] = given
        if given.dim() > axis and given.size(axis) == batch.batch:
            row = other.inputs[name].to(given)
            row = row / 2 if name == first.main and given.is_floating_point() else row
            inputs[name] = given.index_copy(axis, torch.tensor([1], device=given.device), row)
    return replace(batch, inputs=inputs)


@dataclass(kw_only=True, eq=False, repr=False)
class MovedRows(Intercept):
    """A run in which the sum of embeddings of some rows is moved."""

    rows: Tensor

    def make_leaf(self, tensor: Tensor) -> Tensor:
        axis = axis_of(trace_of(tensor).samples)
        if self.leaf is None and axis is not None and tensor.size(axis) == len(self.rows):
            self.starting_at = tensor + make_steps(tensor, axis, self.rows)
        return super().make_leaf(tensor)


def make_steps(given: Tensor, axis: int, rows: Tensor) -> Tensor:
    """By how much each row is moved: the same random signs forth and back.

    Whole numbers may be codes, so they go away from 0 only: cut back to a whole number, they stay what they are. A step
    to one side adds curvature, so it is shorter.
    """
    own = given.detach().select(axis, 0)
    away = torch.where(own < 0, -1, 1)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(0, 2, own.shape, generator=generator) * 2 - 1 for _ in range(1 + len(rows) // 2)]
    size = STEPS.get(given.dtype, STEPS[torch.float32]) * own[~own.isnan()].float().std(correction=0)
    signs = [
        torch.where(own == own.round(), 0.5 * away * max(int(sign), 0), drawn[i // 2].to(own) * int(sign))
        for i, sign in enumerate(rows)
    ]
    return torch.stack([sign * size for sign in signs], axis).to(given)


def measure_slope(mode: Intercept, answers: Tensor, rows: Tensor) -> float | None:
    """The change that the steps make over the one that the gradient says, where these differ; else None."""
    leaf, generator = mode.leaf, torch.Generator().manual_seed(1)
    if leaf is None or not answers.requires_grad:
        return None
    weights = torch.randn(answers.shape[1:], generator=generator).to(answers)
    known = answers.detach().isfinite().all(0)
    sums = (answers.where(known, 0) * weights).flatten(1).double().sum(1)
    (found,) = compute_gradients(sums[0], [leaf], allow_unused=True)
    gradient = torch.zeros_like(leaf) if found is None else found
    axis = axis_of(trace_of(leaf).samples) or 0
    steps = (leaf.detach() - leaf.detach().select(axis, 0).unsqueeze(axis)).transpose(0, axis).double()
    parts = (gradient.select(axis, 0).double() * steps.nan_to_num()).flatten(1)[rows != 0]  # a missing number stays
    seen = (sums.detach() - sums.detach()[0])[rows != 0]
    said, seen = ((pairs[::2] - pairs[1::2]) / 2 for pairs in (parts.sum(1), seen))
    size = (answers.detach()[0].where(known[None][0], 0) * weights).double().norm()
    rounding = 100 * torch.finfo(answers.dtype).eps * size
    usual = parts[::2].norm()  # of steps with random signs: these may have cancelled
    if (seen - said).norm() <= WRONG_SLOPE * max(seen.norm(), said.norm(), usual) + rounding:
        return None
    return float((seen @ said) / (said @ said)) if said.any() else torch.inf


def are_close(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    return measure_gap(one, other) <= min(max(ROUNDING * torch.finfo(dtype).eps, 1e-9), 0.1)


def measure_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number; classes without a value aside."""
    if one.shape != other.shape:
        return torch.inf
    known = one.isfinite() & other.isfinite()
    first, second = (tensor.detach().where(known, 0).double() for tensor in (one, other))
    largest = float(torch.maximum(first.abs(), second.abs()).max())
    return float((first - second).abs().max()) / largest if largest else 0.0
