"""How much memory a planned run takes, how it is saved where there is too little, and what is said if that fails."""

from dataclasses import replace

from torch import Tensor, nn

from whyformer._engine.capture.capture import run_setting
from whyformer._engine.plan.backward_plan import BackwardPlan
from whyformer._engine.plan.run import Saving
from whyformer._engine.tracing.tiles import find_free_memory
from whyformer._model import EncodedBatch
from whyformer._plain.private_torch import storage_of, writes_of

ALWAYS_FREE = 2**24  # bytes, for which nobody needs to look
FILLED = 0.8  # of the free memory, from which on blocks are computed again
RAN_OUT = "Blocks were computed again in the backward pass: memory ran out without."
MOVED = "Blocks were computed again in the backward pass, from inputs kept in main memory: memory ran out without."
RESTORED = "Blocks were computed again in the backward pass: they would keep all weights as restored from fewer bits."
TRIED = (  # by Saving
    "",
    ", also with blocks computed again in the backward pass",
    ", also with blocks computed again in the backward pass from inputs kept in main memory",
)


# --- what is kept -----------------------------------------------------------------------------------------------------


def note_bytes(plan: BackwardPlan, kept_per_token: float) -> BackwardPlan:
    """The plan with about what a token takes; if blocks run again, the input of each, and one with its gradients."""
    blocks = max(len(plan.blocks), 1)
    inputs, one = blocks * plan.facts.bytes_of_state, 3 * kept_per_token / blocks
    return replace(plan, bytes_per_token=kept_per_token, bytes_again=inputs + one, bytes_of_block=one)


class KeptMemory:
    """How much a run keeps for its backward pass besides the weights."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {storage_of(weight) for weight in module.parameters()}
        coded = [tuple(weight.shape) for weight in module.parameters() if type(weight) is not nn.Parameter]
        self.coded = {*coded, *(shape[::-1] for shape in coded)}  # as they are, and transposed
        self.sizes: dict[int, int] = {}
        self.restores = False  # weights from fewer bits, which are kept as long as what is computed with them

    def note(self, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) in self.coded:
            self.restores = True
        elif storage_of(tensor) not in self.weights and not tensor.is_meta:
            self.sizes[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        """For `saved_tensors_hooks`, under which autograd itself does not see that a tensor was written into."""
        return self.note(tensor), 0 if tensor.is_inference() else writes_of(tensor)

    @staticmethod
    def unpack(kept: tuple[Tensor, int]) -> Tensor:
        tensor, writes = kept
        if not tensor.is_inference() and writes_of(tensor) != writes:
            shape = list(tensor.shape)
            raise RuntimeError(f"what the backward pass needs was modified by an inplace operation: shape {shape}")
        return tensor

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


# --- what is done about it --------------------------------------------------------------------------------------------


def choose_saving(plan: BackwardPlan, encoded: EncodedBatch) -> tuple[Saving, tuple[str, ...]]:
    """How memory is saved, and a note if nobody asked for it."""
    if (asked := run_setting.get().recompute) is not None or not plan.blocks:
        return Saving.BLOCKS if asked and plan.blocks else Saving.NOTHING, ()
    if plan.restores:
        return Saving.BLOCKS, (RESTORED,)
    ids = encoded.inputs[encoded.main]
    needed = plan.bytes_per_token * ids.numel()
    if needed < ALWAYS_FREE:
        return Saving.NOTHING, ()
    free = find_free_memory(ids.device)
    if free is None or needed <= FILLED * free:
        return Saving.NOTHING, ()
    words = f"what they keep would take {needed / 2**30:,.1f} GiB of {free / 2**30:,.1f} GiB that are free"
    return Saving.BLOCKS, (f"Blocks were computed again in the backward pass: {words}.",)


def list_ways(plan: BackwardPlan, encoded: EncodedBatch) -> list[tuple[Saving, tuple[str, ...]]]:
    """How a run is tried, one way after the other, and what is noted."""
    first, note = choose_saving(plan, encoded)
    is_free = bool(plan.blocks) and run_setting.get().recompute is not False
    later = [(Saving.BLOCKS, (RAN_OUT,))] if is_free else []
    later += [(Saving.INPUTS, (MOVED,))] if is_free and has_main_memory(encoded) else []
    return [(first, note), *(way for way in later if way[0] > first)]


def has_main_memory(encoded: EncodedBatch) -> bool:
    """Whether there is memory besides that of the device."""
    return encoded.inputs[encoded.main].device.type != "cpu"


def describe_room(plan: BackwardPlan, encoded: EncodedBatch, saving: Saving) -> str:
    """Why a run does not fit, and how long an input would."""
    ids = encoded.inputs[encoded.main]
    per_token = (plan.bytes_per_token, plan.bytes_again, plan.bytes_of_block)[saving]
    free = find_free_memory(ids.device)
    told = [f"Out of memory: {ids.numel():,} tokens do not fit{TRIED[saving]}."]
    if free is not None and per_token:
        needed, fitting = per_token * ids.numel() / 2**30, int(FILLED * free / per_token)
        told.append(
            f"They need about {needed:,.2f} GiB beside the weights; {free / 2**30:,.2f} GiB are free, enough for "
            f"about {fitting:,} tokens."
        )
    remedy = "" if saving or not plan.blocks else "use `with whyformer.engine(recompute=True):`, "
    told.append(f"Explain fewer or shorter inputs, {remedy}or load the model in fewer bits or with device_map='auto'.")
    return " ".join(told)
