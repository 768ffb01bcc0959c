"""What a run of a model shows, in words, for `diagnose`: attention, order of the tokens, blocks, task."""

from collections.abc import Callable

from whyformer._engine import (
    Order,
    Run,
    find_blocks,
    find_first_grid,
    find_order,
    find_task,
    is_causal,
    refuse_encoder_decoders,
    run_forward,
)
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.words import list_some
from whyformer.errors import WhyformerError

TASK_WORDING = {
    "next token": "the next token, of {count}",
    "masked token": "the token at a mask, of {count}",
    "token class": "a class for every token, of {count}",
    "answer span": "a span of the text (start and end)",
    "frame": "a character for every frame, of {count}",
    "representation": "a representation of the input ({count} channels): the model has no head",
}


def describe_run(model: Model, encoded: EncodedBatch) -> dict[str, str]:
    """What a run of the model shows; where something is not found, the reason."""
    refuse_encoder_decoders(model.module)
    with run_forward(model, encoded, asks_gradient=True) as run:
        if (first_grid := find_first_grid(run, encoded)) is None:
            return describe_forward(model, encoded, run)
    with run_forward(model, encoded, asks_gradient=True, first_grid=first_grid) as run:
        return describe_forward(model, encoded, run)


def describe_forward(model: Model, encoded: EncodedBatch, run: Run) -> dict[str, str]:
    found = describe_attention(run)
    found["order"] = describe_or_explain(lambda: describe_order(find_order(model, encoded, run, always=True)))
    found["blocks"] = describe_or_explain(lambda: describe_blocks(run))
    found["task"] = describe_or_explain(lambda: describe_task(model, encoded, run))
    return found


def describe_attention(run: Run) -> dict[str, str]:
    """How many attention sites there are, and of what kind."""
    sites = run.mode.sites
    if not sites:
        return {"attention": "none"}
    heads = sorted({site.value.size(1) for site in sites})
    fused = sum(site.query is not None for site in sites)
    kind = "fused" if fused == len(sites) else "not fused" if not fused else f"{fused} fused"
    obstacles = list(dict.fromkeys(site.obstacle for site in sites if site.obstacle))
    found = {"attention": f"{len(sites)} sites, {kind}", "heads": " or ".join(map(str, heads)) + " per site"}
    if run.mode.first_grid is not None:
        return found | {"layers": "tokens are not the same at all (windows, merged or added): joined into one sequence"}
    return {**found, "but": "; ".join(obstacles)} if obstacles else found


def describe_order(order: Order) -> str:
    """What the check found about the places of tokens and examples in the model."""
    if order.moves_examples:
        return "checked: examples of a batch change places inside, so each is run alone"
    if order.obstacle:
        return f"checked: {order.obstacle}"
    if order.sequence is None:
        return "not checked: the tokens of the input are not known"
    how = "checked, measured" if order.is_measured else "checked"
    if not order.is_as_given:
        return f"{how}: tokens change places inside, which is undone"
    missing = int(order.sequence.max()) + 1 - int((order.sequence[0] >= 0).sum())
    extra = int((order.sequence[0] < 0).sum())
    added = f", {extra} added by the model" if extra else ""
    return f"{how}: tokens are in the order of the input{added}" + (f", {missing} left out" if missing > 0 else "")


def describe_blocks(run: Run) -> str:
    """How many blocks there are; where some have no attention, how many do."""
    blocks = find_blocks(run.mode)
    attending = len(set(blocks.attending))
    return f"{blocks.count}" if attending == blocks.count else f"{blocks.count}, {attending} of them with attention"


def describe_task(model: Model, encoded: EncodedBatch, run: Run) -> str:
    """What the model answers, from what it returned."""
    task = find_task(model, encoded, run.returned, lambda: is_causal(run))
    count = task.output.shape[-1] if task.output.dim() > 1 else 1
    if task.kind in TASK_WORDING:
        return TASK_WORDING[task.kind].format(count=count)
    problem = getattr(getattr(unwrap(model.module), "config", None), "problem_type", None)
    if count == 1 or problem == "regression":
        return "one number (regression)" if count == 1 else f"{count} numbers (regression)"
    named = f": {list_some(model.labels)}" if model.labels is not None and len(model.labels) == count else ""
    return f"{'any of' if problem == 'multi_label_classification' else 'one of'} {count} classes{named}"


def describe_or_explain(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except WhyformerError as error:
        return f"not found: {error}"
