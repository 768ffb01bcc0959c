"""A note on hybrids: blocks that mix tokens without attention are invisible to methods that read attention.

In a hybrid (Jamba, Qwen3-Next, Falcon-H1 ...) most blocks are state spaces, linear attention or convolutions. Rollout
of the few that have attention is a map all the same, and the reader must know what it leaves out.
"""

from whyformer._engine.intercept import Intercept, ModuleCall

OPENING = "Only some blocks have attention"


def note_missing_attention(mode: Intercept) -> tuple[str, ...]:
    """A sentence if blocks beside those with attention have none; nothing otherwise."""
    blocks = find_blocks_beside(mode)
    seeing = [call for call in blocks if call.sites]
    if not seeing or len(seeing) == len(blocks):
        return ()
    return (
        f"{OPENING}, {len(seeing)} of {len(blocks)}: methods that read attention do not see what the others mix "
        "between tokens. gradient_x_input, attnlrp and leave_one_out see all blocks.",
    )


def is_on_missing_attention(note: str) -> bool:
    return note.startswith(OPENING)


def find_blocks_beside(mode: Intercept) -> list[ModuleCall]:
    """The elements of the list of modules that the blocks with attention are in, in the order of their calls."""
    lists = set()
    for site in mode.sites:
        around = [mode.calls[number] for number in site.enclosing]
        outermost = next((call for call in around if call.path.rpartition(".")[2].isdigit()), None)
        if outermost is not None and adds_residual(outermost, site.step, mode):
            lists.add(outermost.path.rpartition(".")[0])
    return [call for call in mode.calls if is_element(call.path, lists)]


def adds_residual(call: ModuleCall, since: int, mode: Intercept) -> bool:
    """Whether states are added inside a call after this step: a block, and not the attention of one (vit-pytorch)."""
    return any(step.kind == "add" and since < step.step <= call.output_step for step in mode.stream)


def is_element(path: str, lists: set[str]) -> bool:
    owner, _, name = path.rpartition(".")
    return name.isdigit() and owner in lists
