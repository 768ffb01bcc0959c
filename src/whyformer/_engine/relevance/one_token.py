"""Relevance of one token: where the answer is read from the class token, no other has any until attention spreads it.

In the MLP of the last block, all rows but one of what arrives are zero. Rules that treat each token by itself see that
row alone; what they return is zero everywhere else. That spares most of the products of the last block.

The row is known where the model picks the token, `x[:, 0]`. The tensor that is passed on is marked, and the mark holds
only as long as nothing has been added to the tensor: where two branches meet, nothing is known any more.
WHYFORMER_ONE_TOKEN=0 in the environment switches this off; scores are the same up to the order of sums.
"""

import os
from dataclasses import dataclass

from torch import Tensor

from whyformer._engine.relevance import calls, rules, slopes
from whyformer._engine.tracing.operations import Argument
from whyformer._engine.tracing.provenance import SampleGroups
from whyformer._plain.private_torch import writes_of

# Rules that compute the shares of a token from that token, or from sums to which tokens without relevance add nothing
BY_TOKEN = {
    rules.share_positive_products,
    rules.share_doubled_products,
    rules.share_epsilon_products,
    rules.share_normalised_addition,
    rules.share_plain_addition,
    slopes.favour_agreeing_products,
    slopes.pass_secant,
}
IS_USED = os.environ.get("WHYFORMER_ONE_TOKEN", "1") != "0"


@dataclass(frozen=True)
class OneToken:
    """The axis of the tokens, and the only one that has relevance."""

    axis: int
    index: int

    def pick(self, tensor: Tensor) -> Tensor:
        return tensor.narrow(self.axis, self.index, 1)

    def pick_samples(self, samples: SampleGroups | None) -> SampleGroups | None:
        if samples is None or samples.label.size(self.axis) == 1:
            return samples
        return SampleGroups(self.pick(samples.label), samples.count)

    def put_back(self, share: Tensor, like: Tensor) -> Tensor:
        """A tensor of the shape of `like`, zero but for the one token."""
        whole = share.new_zeros(like.shape)
        self.pick(whole).copy_(share)
        return mark(whole, self)


def mark(tensor: Tensor, token: OneToken) -> Tensor:
    tensor._whyformer_token = (token, writes_of(tensor))  # type: ignore[attr-defined]
    return tensor


def token_of(tensor: Tensor) -> OneToken | None:
    """The only token that has relevance, if that is known: autograd may have added to the tensor since."""
    token, version = getattr(tensor, "_whyformer_token", (None, -1))
    return token if version == writes_of(tensor) else None


def find_token(index: Argument, size: tuple[int, ...]) -> OneToken | None:
    """The token that `x[index]` picks, if it is one entry of one axis and all of the others."""
    picked: dict[int, int] = {}
    for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
        if type(part) is int:
            picked[axis] = part % size[axis]
        elif part != slice(None):
            return None
    axis, token = next(iter(picked.items()), (0, 0))
    return OneToken(axis, token) if len(picked) == 1 and 0 < axis < len(size) - 1 else None


def pass_by_token(call: calls.OperationCall, arriving: Tensor) -> calls.Shares | None:
    """As `call.apply_rule(arriving)`; less is computed where only one token has relevance."""
    if not IS_USED:
        return call.apply_rule(arriving)
    if isinstance(call, calls.SelectCall):
        return pass_to_token(call, arriving)
    token = token_of(arriving)
    if token is None or not all(x.shape == call.result.shape[:-1] + x.shape[-1:] for x in call.operands):
        return call.apply_rule(arriving)
    if call.recipe.rules[call.kind] in BY_TOKEN and is_by_token(call):
        shares = narrow_call(call, token).apply_rule(token.pick(arriving))
        assert shares is not None
        return tuple(
            token.put_back(s, x) if s is not None else None for s, x in zip(shares, call.operands, strict=True)
        )
    shares = call.apply_rule(arriving)
    if shares is not None and isinstance(call, calls.NormCall) and call.is_by_token:
        return tuple(share if share is None else mark(share, token) for share in shares)
    return shares


def pass_to_token(call: calls.SelectCall, arriving: Tensor) -> calls.Shares | None:
    """Picking a token: its relevance goes back to it, and the others are known to have none."""
    token = find_token(call.index, tuple(call.operand.shape))
    shares = call.apply_rule(arriving)
    if token is None:
        return shares
    if shares is None:  # the true gradient
        return (token.put_back(arriving.unsqueeze(token.axis), call.operand),)
    return tuple(share if share is None else mark(share, token) for share in shares)


def is_by_token(call: calls.OperationCall) -> bool:
    """Not a convolution, whose outputs see several tokens; not a sum with a constant, which may be broadcast."""
    if isinstance(call, calls.AdditionCall):
        return len(call.operands) == 2
    return type(call) in (calls.LinearCall, calls.ActivationCall)


def narrow_call(call: calls.OperationCall, token: OneToken) -> calls.OperationCall:
    """The same call for the one token."""
    narrow = object.__new__(type(call))
    vars(narrow).update(
        vars(call),
        samples=token.pick_samples(call.samples),
        result=token.pick(call.result),
        operands=tuple(token.pick(x) for x in call.operands),
    )
    return narrow
