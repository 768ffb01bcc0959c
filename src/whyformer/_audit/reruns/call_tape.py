"""The calls of a forward pass on tape: what modules returned before an attention, to be returned again in a rerun."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from whyformer._engine.run.returned import Returned, map_tensors
from whyformer._engine.tracing import provenance
from whyformer._engine.tracing.provenance import attach_trace, axis_of, trace_of
from whyformer._plain.private_torch import without_interception

COMPUTED: Returned = (None,)  # this very object marks a call that is computed, not replayed


@dataclass
class ReplayedCall:
    """One call of a module of the shadow model, running or finished."""

    path: str
    serial: int
    output: Any = None
    sites: list[int] = field(default_factory=list)  # attention computed inside it
    finished: list["ReplayedCall"] = field(default_factory=list)  # calls made by it that have returned


@dataclass(frozen=True)
class EarlierOutputs:
    """What modules had returned when an attention was reached."""

    outputs: Mapping[str, list[Returned]]  # by module path, the output of each call in order; or COMPUTED
    sites: tuple[int, ...]  # the earlier attention that a rerun still computes, in order


class CallTape:
    """Follows the module calls of a forward pass and keeps the outputs from before each of the chosen sites."""

    def __init__(self, sites: Sequence[int]) -> None:
        self.chosen = set(sites)
        self.before: dict[int, EarlierOutputs] = {}
        self.running = [ReplayedCall("", -1)]
        self.serial = self.site = 0

    def watch(self, shadow: nn.Module) -> None:
        def add_hooks(path: str, module: nn.Module) -> None:
            module.register_forward_pre_hook(lambda *_: self.enter(path))
            module.register_forward_hook(lambda module, _, output: self.leave(output))

        for path, module in shadow.named_modules():
            add_hooks(path, module)

    def enter(self, path: str) -> None:
        self.running.append(ReplayedCall(path, self.serial))
        self.serial += 1

    def leave(self, output: Any) -> None:
        call = self.running.pop()
        with without_interception():  # the interception is active inside hooks
            call.output, call.finished = detach_output(output), []
        self.running[-1].finished.append(call)

    def reach_attention(self) -> None:
        """Called when an attention is about to be used."""
        if self.site in self.chosen:
            self.before[self.site] = self.collect_outputs()
        for call in self.running:
            call.sites.append(self.site)
        self.site += 1

    def collect_outputs(self) -> EarlierOutputs:
        finished = [call for outer in self.running for call in outer.finished]
        skipped = {site for call in finished for site in call.sites}
        outputs: dict[str, list[Returned]] = {}
        for call in sorted([*finished, *self.running[1:]], key=lambda call: call.serial):
            outputs.setdefault(call.path, []).append(COMPUTED if call in self.running else call.output)
        return EarlierOutputs(outputs, tuple(site for site in range(self.site) if site not in skipped))


def detach_output(output: Returned) -> Returned:
    """The same structure with its tensors detached. Labels, and whether they depend on the input, are kept."""
    return map_tensors(
        output, lambda tensor: attach_trace(tensor.detach(), replace(trace_of(tensor), depends=tensor.requires_grad))
    )


def replay_outputs(shadow: nn.Module, before: EarlierOutputs, of: Tensor, batch: int) -> None:
    """Make the modules of a shadow model return their earlier outputs, for the examples `of`."""
    for path, module in shadow.named_modules():
        if path in before.outputs:
            module.forward = make_replaying_forward(module.forward, before.outputs[path], of, batch)  # type: ignore[method-assign]


def make_replaying_forward(
    compute: Callable[..., Any], outputs: list[Returned], of: Tensor, batch: int
) -> Callable[..., Any]:
    remaining = iter(outputs)

    def forward(*args: Any, **kwargs: Any) -> Returned:
        output = next(remaining, COMPUTED)
        if output is COMPUTED:
            return compute(*args, **kwargs)
        with without_interception():
            return map_tensors(output, lambda tensor: select_example_rows(tensor, of, batch))

    return forward


def select_example_rows(tensor: Tensor, of: Tensor, batch: int) -> Tensor:
    """The rows of a batch that belong to these examples, with their labels."""
    trace = trace_of(tensor)
    axis = axis_of(trace.samples)
    if axis is None and trace.samples is None and trace.depends:  # labels were lost, as in an LSTM
        axis = next((axis for axis in range(tensor.dim()) if tensor.size(axis) == batch), None)
    if axis is None or tensor.size(axis) != batch:
        return tensor
    rows = select_keeping_strides(tensor, axis, of.to(tensor.device))
    samples = provenance.label_axis(axis, len(of), rows.dim(), rows.device) if trace.samples is not None else None
    return attach_trace(rows, replace(trace, samples=samples, words=None, read=None, root=None, depends=False))


def select_keeping_strides(tensor: Tensor, axis: int, rows: Tensor) -> Tensor:
    """`index_select` that keeps the memory layout: kernels round differently for another layout."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda a: -strides[a])
    back = [order.index(a) for a in range(tensor.dim())]
    return tensor.permute(order).index_select(order.index(axis), rows).permute(back)
