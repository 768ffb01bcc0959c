"""The states that the attentions of an encoder and a decoder read: one for each attention, over source and prefix.

A self-attention reads what enters its block, cross-attention what the encoder returns. Tokens of the stream that an
attention does not read have the state 0.
"""

from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

from whyformer._engine.layout.blocks import find_block_call, is_repeated, keeps_shape, resolve_entrance
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import trace_of
from whyformer._engine.tracing.token_numbers import TokenNumbers
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


def find_read_state(mode: Intercept, site: AttentionSite, numbers: TokenNumbers) -> Tensor:
    """Where layers do not all have the same tokens: what enters the block around an attention.

    If the block takes other tokens than the attention reads (a class token that asks), it is what enters the innermost
    module around it that has them all, or a module in it that computes keys.
    """
    around = [mode.calls[number] for number in site.enclosing]
    with suppress(UnsupportedModel):
        around.append(find_block_call(site, mode))
    wanted = list_members(site.tokens.keys if site.tokens is not None else None, numbers)
    innermost = mode.calls[site.enclosing[-1]]
    inside = [call for call in mode.calls[innermost.number + 1 :] if call.input_step < site.step]
    for call in (*reversed(around), *reversed(inside)):
        state = resolve_entrance(call.input)
        if state is not None and wanted <= list_members(trace_of(state).tokens, numbers):
            return state
    raise UnsupportedModel(f"The states that the attention in {site.path} reads were not found.")


def list_members(label: Tensor | None, numbers: TokenNumbers) -> set[int]:
    """The patches and added tokens that these tokens stand for."""
    tokens = [] if label is None else label.unique().tolist()
    return {member for token in tokens for member in numbers.list_members(token)}


def put_into_both(state: Tensor, site: AttentionSite, length: int) -> Tensor:
    """[batch token channel] over source and prefix, from the state [batch token channel] of one of them."""
    start = (site.first_positions or (0, 0))[1]
    whole = state.new_zeros(state.size(0), length, state.size(2))
    whole[:, start : start + state.size(1)] = state
    return whole
