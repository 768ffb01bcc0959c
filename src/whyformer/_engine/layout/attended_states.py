"""The states that the attentions of an encoder and a decoder read: one for each attention, over source and prefix.

A self-attention reads what enters its block, cross-attention what the encoder returns. Tokens of the stream that an
attention does not read have the state 0.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._engine.layout.blocks import is_repeated, keeps_shape, resolve_entrance
from whyformer._engine.run import Intercept
from whyformer._engine.tracing import AttentionSite, trace_of
from whyformer.errors import UnsupportedModel


def find_attended_states(mode: Intercept, sites: Sequence[AttentionSite]) -> list[Tensor]:
    """The state of the tokens that each attention reads, in the model's order of axes."""
    return [find_attended_state(mode, site) for site in sites]


def find_attended_state(mode: Intercept, site: AttentionSite) -> Tensor:
    around = [mode.calls[number] for number in site.enclosing]
    row, column = site.first_positions or (0, 0)
    if row == column:
        given = [call.input for call in around if is_repeated(call, mode) and keeps_shape(call)]
    else:  # its module calls one that computes keys, from what the encoder returns
        calls = mode.calls[around[-1].number + 1 :] if around else []
        inside = [call for call in calls if call.path.startswith(f"{around[-1].path}.")]
        given = [call.input for call in inside if begins_at(call.input, column)]
    if not given:
        raise UnsupportedModel(f"The states that the attention in {site.path} reads were not found.")
    return resolve_entrance(given[0])


def begins_at(state: Tensor | None, start: int) -> bool:
    """Whether this is a state of the stream whose first token has this position."""
    tokens = None if state is None else trace_of(state).tokens
    return tokens is not None and int(tokens.min()) == start


def put_into_both(state: Tensor, site: AttentionSite, length: int) -> Tensor:
    """[batch token channel] over source and prefix, from the state [batch token channel] of one of them."""
    start = (site.first_positions or (0, 0))[1]
    whole = state.new_zeros(state.size(0), length, state.size(2))
    whole[:, start : start + state.size(1)] = state
    return whole
