"""Where a plan computes attention: planned runs keep queries, keys, values and weights as the full engine does."""

from dataclasses import dataclass

from torch import Tensor

from whyformer._engine.tracing.attention import AttentionSite, read_fused_site
from whyformer._engine.tracing.operations import FUSED_ATTENTION, Operation


@dataclass(frozen=True)
class AttentionStep:
    """A step that is the attention of one layer, and how its heads are arranged."""

    step: int
    path: str
    heads: int
    folds_heads: str
    batch_axis: int

    def read(self, operation: Operation, result: Tensor) -> AttentionSite:
        """The operation as an attention site, with its output on the graph."""
        if operation.name == FUSED_ATTENTION:
            site = read_fused_site(operation, result, self.path)
        else:
            site = AttentionSite(self.path, operation.args[1], result, operation.args[0])
        site.folds_heads, site.batch_axis = self.folds_heads, self.batch_axis
        site.unfold(self.heads)
        return site.detach()


def describe_site(site: AttentionSite, step: int | None) -> AttentionStep | None:
    """The step of a plan that computes this site; None if it is more than one operation, or not a plain one."""
    is_plain = not site.parts and site.first_key == 0 and site.joined_axis is None and site.tokens is None
    if step is None or step < 0 or not is_plain or site.first_positions is not None or site.obstacle:
        return None
    return AttentionStep(step, site.path, site.value.size(1), site.folds_heads, site.batch_axis)
