"""Sources: the parts of a prompt that an answer may come from, and what stays when they are left out.

The last token of the prompt always stays, since the first token of the answer is read there. So do special tokens, and
whatever belongs to no source, such as the question.
"""

from collections.abc import Sequence
from typing import Any

import torch

from whyformer._model.prompt import Prompt
from whyformer._model.regions import Region
from whyformer.errors import InputError
from whyformer.methods._players import Players
from whyformer.show.wording import shorten_text


def find_sources(prompt: Prompt, by: Any, within: Any) -> tuple[Region, ...]:
    """At least two regions of the prompt, in order and without overlap."""
    sources = check_regions(prompt, by) if is_region_list(by) else prompt.split(by)
    if within is not None:
        part = find_part(prompt, within)
        sources = tuple(one for one in sources if is_inside(one, part))
    if len(sources) < 2:
        there = f"Only {sources[0].name} is there" if sources else "None is there"
        where = "" if within is None else " within the given part"
        finer = "Pass" if by == "sentence" else 'Split the prompt by "sentence", or pass'
        raise InputError(
            f"A citation needs at least two parts of the prompt to choose from. {there}{where}. {finer} by= a list of "
            "texts that occur in it."
        )
    return sources


def is_region_list(by: Any) -> bool:
    return isinstance(by, Sequence) and not isinstance(by, str) and any(isinstance(one, Region) for one in by)


def check_regions(prompt: Prompt, regions: Sequence[Any]) -> tuple[Region, ...]:
    """Regions that the caller made: in order, not overlapping, and tokens of this prompt."""
    if not all(isinstance(one, Region) for one in regions):
        raise InputError("by must have regions only, or none.", code="E_OPTION")
    end = 0
    for one in sorted(regions, key=lambda region: region.start):
        if not 0 <= one.start < one.stop <= prompt.prompt_length:
            raise InputError(
                f"{one.name} has the tokens {one.start} to {one.stop}, but {prompt.prompt_length} tokens are before "
                "the answer."
            )
        if one.start < end:
            raise InputError(
                f"{one.name} begins at token {one.start}, inside the region before it, which ends at {end}."
            )
        end = one.stop
    return tuple(sorted(regions, key=lambda region: region.start))


def find_part(prompt: Prompt, within: Any) -> Region:
    """A part of the prompt: a region, the first one of that name, or a text that occurs."""
    if isinstance(within, Region):
        return within
    if not isinstance(within, str) or not within:
        raise InputError(
            f"within must be a region of the prompt, its name, or a text that occurs in it, got {within!r}.",
            code="E_OPTION",
        )
    named = [one for one in prompt.regions if one.name == within]
    if named:
        return named[0]
    if within not in prompt.text[: prompt.answer_start]:
        names = ", ".join(dict.fromkeys(one.name for one in prompt.regions))
        raise InputError(
            f"The prompt has no region {shorten_text(within, 60)!r}, and this text does not occur in it. Regions: "
            f"{names}."
        )
    (found,) = prompt.split([within])
    return found


def is_inside(source: Region, part: Region) -> bool:
    """By characters, since the token after the last word may hold line breaks; by tokens if there is no text."""
    own, whole = source.characters, part.characters
    if own is None or whole is None:
        own, whole = (source.start, source.stop), (part.start, part.stop)
    return whole[0] <= own[0] and own[1] <= whole[1]


def make_source_players(prompt: Prompt, sources: Sequence[Region]) -> Players:
    """The source that each token of prompt and answer belongs to."""
    owner = torch.full((len(prompt.ids),), -1)
    for number, source in enumerate(sources):
        owner[source.start : source.stop] = number
    owner[prompt.prompt_length - 1 :] = -1
    for number, source in enumerate(sources):
        if not bool((owner == number).any()):
            raise InputError(
                f"{source.name} is the last token of the prompt, at which the answer is read, so it cannot be left "
                "out. Choose parts that end before it."
            )
    return Players(owner, len(sources), (1, len(sources)))
