"""Sources: the passages and documents of a prompt that an answer may come from, and what is kept apart from them.

Kept apart, shown with their scores and never left out: the question, instructions, and what is said in a chat by the
system, by the assistant and by tool calls. Documents and results of tools are sources, and so is what else a user says.

Which paragraph asks is read off its place and its form (find_requests): at the end of the last message a question, or a
line that asks for the answer; at its beginning a question or an instruction; and if there is none of them, the last
paragraph, which the answer continues. Parts that the caller lists are sources whatever they say.

The last token of the prompt always stays, since the first token of the answer is read there. So do special tokens, and
whatever belongs to no source.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

import torch

from whyformer._model.prompt import SPLITTERS, WHOLE, Prompt, Region, SplitBy
from whyformer.errors import InputError
from whyformer.methods._players import Players

SPOKEN = ("system", "assistant", "thinking", "tool call", "tool definition")  # kinds that are none
ASKS = re.compile(r"\s*(question|q|query|problem)\s*\d*\s*[:.)]", re.IGNORECASE)
INSTRUCTS = re.compile(
    r"\s*((you are|please|tell|say|name|list|explain|describe|summari[sz]e|give|find|state|translate)\b"
    r"|(instructions?|task|system|answer|response|assistant|a)\s*:"
    r"|(answer|use|using|read|given|based on|refer to|consider|respond|reply|write)\b.*"
    r"\b(following|above|below|context|information|passages?|documents?|sources?|texts?|notes?|questions?|words?|sentences?)\b)",
    re.IGNORECASE,
)
LONGEST_INSTRUCTION = 400  # characters of what is taken for one by how it begins


@dataclass(frozen=True)
class DividedPrompt:
    """The parts of a prompt that an answer may come from, and those that are no sources."""

    sources: tuple[Region, ...]  # at least two, in order and without overlap
    apart: tuple[Region, ...]  # question, instructions, roles; in order


def find_sources(prompt: Prompt, by: SplitBy, within: Region | str | None) -> DividedPrompt:
    """The sources of a prompt by the unit or the parts that are asked for, in the given part of it."""
    part = None if within is None else prompt.find_region(within)
    sources = list_possible_sources(prompt, by, part)
    if len(sources) < 2:
        there = f"Only {sources[0].name} is there" if sources else "None is there"
        where = "" if within is None else " within the given part"
        raise InputError(
            f"A citation needs at least two sources to choose from. {there}{where}: questions, instructions and what "
            f"the system or the assistant says are no sources. {suggest_split(prompt, by, within)}"
        )
    covered = {token for one in sources for token in range(one.start, one.stop)}
    apart = find_apart(prompt, part, choose_asking_unit(prompt, part))
    return DividedPrompt(sources, tuple(one for one in apart if covered.isdisjoint(range(one.start, one.stop))))


def list_possible_sources(prompt: Prompt, by: SplitBy, part: Region | None = None) -> tuple[Region, ...]:
    """Those in a part of the prompt, however few."""
    found = find_source_units(prompt, by, part) if isinstance(by, str) else prompt.split(by)
    return tuple(one for one in found if part is None or is_inside(one, part))


def suggest_split(prompt: Prompt, by: SplitBy, within: Region | str | None) -> str:
    """Which arguments would find sources here, each with how many."""
    found = []
    if within is None and isinstance(by, str):
        systems = [one for one in prompt.regions if one.kind == "system"]
        for unit, part in [("sentence", None), *product(("passage", "sentence"), systems)]:
            if (part is not None or unit != by) and (count := len(list_possible_sources(prompt, unit, part))) > 1:
                where = "" if part is None else f', within="{part.name}"'
                found.append(f'by="{unit}"{where} ({count} sources)')
    more = f"{' or '.join(found)}, or " if found else ""
    return f"Pass {more}by= a list of texts that occur in the prompt."


# --- units ------------------------------------------------------------------------------------------------------------


def find_source_units(prompt: Prompt, by: str, part: Region | None) -> tuple[Region, ...]:
    """Passages, sentences, documents or messages that are sources, numbered as such."""
    if by not in SPLITTERS:
        return tuple(one for one in prompt.split(by) if by == "document" or not is_kept_apart(prompt, one, part))
    apart = find_apart(prompt, part, choose_asking_unit(prompt, part))
    return tuple(replace(one, name=f"{by} {n}") for n, one in enumerate(list_outside(prompt.split(by), apart), 1))


def is_kept_apart(prompt: Prompt, message: Region, part: Region | None) -> bool:
    """Whether a message is no source: it is spoken by others than users and tools, or it is the last of a user."""
    users = [one for one in prompt.regions if one.kind == "user"]
    return message != part and (message.kind in SPOKEN or message in users[-1:])


def list_outside(units: Sequence[Region], apart: Sequence[Region]) -> list[Region]:
    return [one for one in units if not any(is_inside(one, other) for other in apart)]


# --- what is kept apart -----------------------------------------------------------------------------------------------


def choose_asking_unit(prompt: Prompt, part: Region | None) -> str:
    """What asks: a paragraph or, if nothing else would be left, a sentence."""
    passages = prompt.split("passage") if prompt.text.strip() else ()
    return "passage" if list_outside(passages, find_apart(prompt, part, "passage")) else "sentence"


def find_apart(prompt: Prompt, part: Region | None, unit: str) -> tuple[Region, ...]:
    """Question, instructions and spoken roles. Nothing is kept apart in a part that the caller has drawn by hand."""
    if part is not None and part not in prompt.regions:
        return tuple(one for one in find_apart(prompt, None, unit) if not is_inside(one, part))
    asking = [one for one in prompt.regions if one.text.strip() and (one.kind == "user" or one.name == WHOLE)]
    apart: list[Region] = []
    for region in prompt.regions:
        if region.kind in SPOKEN and region != part:
            apart.append(region)
        elif region in asking:
            apart += find_asked(prompt, region, unit, is_last=region == asking[-1])
    return tuple(apart)


def find_asked(prompt: Prompt, region: Region, unit: str, *, is_last: bool) -> Iterator[Region]:
    """The paragraphs or sentences of a message that ask; neighbours are one."""
    units = [one for one in prompt.split(unit) if is_inside(one, region)]
    asked = find_requests([one.text for one in units], is_last=is_last)
    for is_asked, numbers in groupby(range(len(units)), asked.__contains__):
        if not is_asked:
            continue
        run = [units[n] for n in numbers]
        kind = "question" if any(is_question(one.text) for one in run) else "instruction"
        first, last = run[0].characters, run[-1].characters
        assert first is not None and last is not None
        place = (first[0], last[1])
        yield Region(kind, kind, run[0].start, run[-1].stop, prompt.text[slice(*place)], place)


def find_requests(texts: Sequence[str], *, is_last: bool) -> set[int]:
    """Which of the parts of a message ask rather than tell.

    From the end: lines that ask for the answer, and instructions, up to a question. From the beginning: instructions
    and, if the end has none, a question. is_last: of the last message at least its last part asks.
    """
    asked: set[int] = set()
    has_question = False
    for order in (reversed(range(len(texts))), range(len(texts))):
        for n in order:
            asks = is_question(texts[n]) and not has_question
            if not asks and not is_instruction(texts[n]):
                break
            asked.add(n)
            if asks:
                has_question = True
                break
    return asked or ({len(texts) - 1} if is_last and texts else set())


def is_question(text: str) -> bool:
    """Ends with a question mark, or begins like "Question:"."""
    return bool(ASKS.match(text)) or text.rstrip(" \n\t\"'”’)").endswith(("?", "？", "؟"))


def is_instruction(text: str) -> bool:
    """Begins like an instruction, or ends with a colon."""
    begins = len(text) <= LONGEST_INSTRUCTION and INSTRUCTS.match(text)
    return bool(begins) or text.rstrip().endswith((":", "："))


# --- places -----------------------------------------------------------------------------------------------------------


def is_inside(source: Region, part: Region) -> bool:
    """By characters, since the token after the last word may hold line breaks; by tokens if there is no text."""
    own, whole = source.characters, part.characters
    if own is None or whole is None:
        own, whole = (source.start, source.stop), (part.start, part.stop)
    return whole[0] <= own[0] and own[1] <= whole[1]


def merge_copies(sources: Sequence[Region]) -> list[tuple[Region, ...]]:
    """The places of each source: those with the same text are one source, which is left out at all of them."""
    places: dict[object, list[Region]] = {}
    for number, one in enumerate(sources):
        text = " ".join(one.text.split()).casefold()
        places.setdefault(text or number, []).append(one)
    return [tuple(some) for some in places.values()]


def make_source_players(prompt: Prompt, copies: Sequence[Sequence[Region]]) -> Players:
    """The source that each token of prompt and answer belongs to; copies: the places of each source."""
    owner = torch.full((len(prompt.ids),), -1)
    for number, places in enumerate(copies):
        for one in places:
            owner[one.start : one.stop] = number
    owner[prompt.prompt_length - 1 :] = -1
    for number in set(range(len(copies))) - set(owner.tolist()):
        raise InputError(
            f"{copies[number][0].name} is the last token of the prompt, at which the answer is read, so it cannot be "
            "left out. Choose parts that end before it."
        )
    return Players(owner, len(copies), (1, len(copies)))
