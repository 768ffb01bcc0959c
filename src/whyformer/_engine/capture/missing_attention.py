"""Notes on hybrids: blocks that mix tokens without attention are invisible to methods that read attention.

In a hybrid (Jamba, Qwen3-Next, Falcon-H1 ...) most blocks are state spaces, linear attention or convolutions, in place
of attention or beside it. Rollout of the few that have attention is a map all the same, and the reader must know what
it leaves out. States between such blocks are mixtures of tokens, and methods that read them must say so.

A note on attention that a model computes in separate operations: its matrices are whole, however long the input.
"""

import math
from collections.abc import Sequence

from whyformer._engine.layout.blocks import find_blocks
from whyformer._engine.run.forward import Run, run_forward
from whyformer._engine.run.intercept import Intercept, ModuleCall
from whyformer._engine.run.model_memory import recall
from whyformer._engine.run.token_mixing import find_unattended
from whyformer._engine.tracing import tiles
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer.errors import NoAttention, WhyformerError

OPENINGS = ("Only some blocks have attention", "Blocks mix tokens beside their attention")
ON_STATES = "mix tokens without attention, so states between blocks"
WAY_OUT = "gradient_x_input, attnlrp and leave_one_out see all blocks."


def note_missing_attention(model: Model, encoded: EncodedBatch, run: Run) -> tuple[str, ...]:
    """A sentence if there are blocks without attention, or if blocks mix tokens beside it; nothing otherwise."""
    if not run.mode.sites:
        return ()
    blocks = find_blocks_beside(run.mode)
    seeing = [call for call in blocks if call.sites]
    if seeing and len(seeing) < len(blocks):
        return (
            f"{OPENINGS[0]}, {len(seeing)} of {len(blocks)}: methods that read attention do not see what the others "
            f"mix between tokens. {WAY_OUT}",
        )
    if run.mode.may_mix and mixes_beside_attention(model, encoded, run):
        return (f"{OPENINGS[1]} (a recurrence, a convolution): methods that read attention do not see it. {WAY_OUT}",)
    return ()


def refuse_missing_attention(model: Model, sites: Sequence[AttentionSite]) -> None:
    """Refuse what is read from attention where there is none."""
    if not sites:
        raise NoAttention(
            f"{type(unwrap(model.module)).__name__} ran without reaching attention: no softmax multiplied values and "
            "no fused attention was called. What this method reads from attention does not exist."
        )


def note_mixed_states(unattended: tuple[bool, ...]) -> tuple[str, ...]:
    """A sentence for methods that read the states between blocks."""
    return (
        f"{sum(unattended)} of {len(unattended)} blocks {ON_STATES} do not belong to one token each. gradient_x_input, "
        "attnlrp and leave_one_out score the tokens of the input.",
    )


def mixes_beside_attention(model: Model, encoded: EncodedBatch, run: Run) -> bool:
    """Whether blocks mix tokens without attention; a run without a graph is repeated with one, once."""
    if encoded.inputs[encoded.main].dim() == 4:
        return False
    known = recall(model.module, "mixing beside attention")
    key = (run.mode.mixers, len(run.mode.sites), len(run.mode.calls))
    if key not in known:
        try:
            if run.mode.needs_gradient:
                known[key] = is_any_unattended(run.mode)
            else:
                with run_forward(model, encoded, asks_gradient=True) as again:
                    again.mode.moves_tokens = run.mode.moves_tokens
                    known[key] = is_any_unattended(again.mode)
        except WhyformerError:
            known[key] = False
    return known[key]


def is_any_unattended(mode: Intercept) -> bool:
    return any(find_unattended(mode, find_blocks(mode).states))


def find_blocks_beside(mode: Intercept) -> list[ModuleCall]:
    """The elements of the list of modules that the blocks with attention are in, in the order of their calls."""
    lists = set()
    for site in mode.sites:
        around = [mode.calls[number] for number in site.enclosing]
        outermost = next((call for call in around if call.path.rpartition(".")[2].isdigit()), None)
        if outermost is not None and adds_residual(outermost, site.step, mode):
            lists.add(outermost.path.rpartition(".")[0])
    parts = ((call, call.path.rpartition(".")) for call in mode.calls)
    return [call for call, (owner, _, name) in parts if name.isdigit() and owner in lists and is_of_states(call)]


def is_of_states(call: ModuleCall) -> bool:
    """Whether it has attention, or takes and returns states: no table of embeddings, and no head that pools them."""
    given = (call.input, call.output)
    return bool(call.sites) or all(tensor is not None and tensor.dim() > 2 for tensor in given)


def adds_residual(call: ModuleCall, since: int, mode: Intercept) -> bool:
    """Whether states are added inside a call after this step: a block, and not the attention of one (vit-pytorch)."""
    return any(step.kind == "add" and since < step.step <= call.output_step for step in mode.stream)


# --- attention in separate operations ---------------------------------------------------------------------------------


def note_whole_attention(mode: Intercept) -> tuple[str, ...]:
    """A sentence if the model itself holds matrices so large that they would be computed in tiles."""
    made = [site.weights for site in mode.sites if site.weights is not None]
    largest = max(made, key=lambda weights: weights.numel(), default=None)
    if largest is None:
        return ()
    size = math.prod(largest.shape) * largest.element_size()
    if size <= tiles.TILED_FROM:
        return ()
    return (
        f"The model computes its attention in separate operations, so {len(made)} matrices of up to "
        f'{size / 2**30:.1f} GiB are whole. Load it with attn_implementation="sdpa" to compute them in tiles.',
    )
