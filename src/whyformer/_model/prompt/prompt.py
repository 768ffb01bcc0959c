"""Prompt: what a language model read and what it answered, as the very tokens, with named regions.

    prompt = Prompt.from_text(model, "Paris is in France. Rome is in Italy.\nWhere is Paris?", answer=" France")
    prompt = Prompt.from_messages(model, [{"role": "user", "content": "Where is Paris?"}], answer="France")
    prompt = Prompt.from_tokens(model, output.prompt_token_ids, output.outputs[0].token_ids)     # from vLLM
    prompt.regions; prompt.split("sentence"); prompt.answer

Tokens are kept as they are. A text is tokenised once, when the prompt is made; nothing is tokenised again after that.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from whyformer._model.preprocessors import ChatMessage, MessageLike, Tokenizer, ToolLike
from whyformer._model.prompt.chat import RenderedChat, find_special_text, render_chat
from whyformer._model.prompt.continuation import encode_continuation
from whyformer._model.prompt.documents import (
    DocumentLike,
    RetrievedDocument,
    cut_parts,
    identify_part,
    list_document_regions,
    locate_documents,
    read_documents,
    render_with_documents,
    write_documents,
)
from whyformer._model.prompt.prompt_log import (
    PROMPT_IDS,
    LoggedAnswer,
    LogRecord,
    find_first,
    find_token_ids,
    join_request_and_response,
    list_logged_calls,
    read_logged_answer,
)
from whyformer._model.prompt.regions import (
    SPLITTERS,
    Characters,
    NamedPart,
    Region,
    SplitBy,
    assign_tokens,
    check_characters,
    check_regions,
    find_texts,
    skip_blanks,
    trim_blanks,
)
from whyformer._model.spans import correct_offsets, decode_with_spans
from whyformer._model.text import TokenizedText, check_text
from whyformer._plain.json_value import Json
from whyformer._plain.setting_checks import list_entries
from whyformer._plain.small_table import fit_in_line, make_small_table
from whyformer._plain.tokens import STREAMS, NamedTokens, Pieces, take_pieces
from whyformer.errors import InputError, suggest_nearest

if TYPE_CHECKING:
    from whyformer._model.model import Model, ModelLike

UNITS = (*SPLITTERS, "document", "role")
LARGEST_ID = 2**63  # what a tensor holds
WHOLE = "prompt"  # the name of the only region of a prompt that has no roles
CALLS_AS_JSON = (
    "The chat template writes no tool calls, so the call of the log was put here as JSON: the model may have written "
    "it otherwise."
)
PUT_BEFORE = (
    "The documents were put before the question, separated by blank lines: the engine may have read them otherwise."
)


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt and of its answer, exactly as the model saw or produced them.

    regions: the parts of the prompt, in order, without gaps; the answer is not among them.
    """

    ids: tuple[int, ...]  # prompt and answer
    pieces: Pieces  # the same tokens as shown, with their places in `text`
    prompt_length: int  # tokens before the answer
    regions: tuple[Region, ...]
    notes: tuple[str, ...] = ()
    logged: tuple[float, ...] | None = None  # the log-probability of each token of the answer, by a log
    source_length: int = 0  # tokens that an encoder reads; the decoder begins after them

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        parts = ", ".join(f"{region.name} {len(region)}" for region in self.regions[:8])
        more = " ..." if len(self.regions) > 8 else ""
        return f"<Prompt of {self.prompt_length} tokens ({parts}{more}), answer of {len(self.answer)}>"

    def _repr_html_(self) -> str:
        """Its regions and its answer as a small table, for notebooks."""
        rows = [(one.name, one.kind, len(one), fit_in_line(one.text or "", 80)) for one in self.regions]
        rows += [("answer", "answer", len(self.answer), fit_in_line(self.answer_text, 80))] if self.answer else []
        return make_small_table(("region", "kind", "tokens", "text"), rows, title=f"Prompt of {len(self)} tokens")

    @property
    def answer(self) -> range:
        """The tokens of the answer; empty if there is none."""
        return range(self.prompt_length, len(self.ids))

    @property
    def named_tokens(self) -> tuple[NamedTokens, ...]:
        """The regions and the answer, as ranges of tokens."""
        named = [NamedTokens(region.name, region.kind, region.start, region.stop) for region in self.regions]
        answer = [NamedTokens("answer", "answer", self.answer.start, self.answer.stop)] if self.answer else []
        return (*named, *answer)

    @property
    def answer_ids(self) -> tuple[int, ...]:
        return self.ids[self.prompt_length :]

    @property
    def text(self) -> str:
        """Prompt and answer as text; special tokens included where the prompt was made from a chat or from tokens."""
        return self.pieces.text or ""

    @property
    def answer_text(self) -> str:
        return self.text[self.answer_start :]

    @property
    def answer_start(self) -> int:
        """The first character of the answer."""
        end = max(find_text_end(self.pieces, self.prompt_length), self.pieces.second or 0)
        return end if self.answer else len(self.text)

    def take(self, part: slice) -> Pieces:
        """Some of its tokens."""
        return take_pieces(self.pieces, range(len(self))[part])

    def without_answer(self) -> "Prompt":
        """The prompt alone, as the model sees it before it generates."""
        return cut_prompt(self, self.prompt_length)

    def split(self, by: SplitBy) -> tuple[Region, ...]:
        """Parts of the prompt, in order.

        by: "sentence", "paragraph", "passage" (separated by blank lines, or one per line if there are none),
        "document", "role"; a list of texts that occur in the prompt, of (start, stop) in characters or of regions; or a
        function that takes the text of the prompt and returns such a list. Sentences and passages of a chat are those
        of its messages: no part crosses from one message to the next, and none contains text of the template.
        """
        if isinstance(by, str):
            return self._split_by_name(by)
        text = self.text[: self.answer_start]
        listed = by(text) if callable(by) else by
        wanted = list_entries(listed)
        if wanted is None:
            units = ", ".join(f'"{name}"' for name in UNITS)
            raise InputError(
                f"A prompt is split by {units}, a list of texts that occur in it, a list of (start, stop) in "
                f"characters, or a function that returns such a list, got {type(listed).__name__}.",
                code="E_OPTION",
            )
        if any(isinstance(one, Region) for one in wanted):
            return check_regions(wanted, self.prompt_length)
        if wanted and all(isinstance(one, str) for one in wanted):
            wanted = list(find_texts(text, [str(one) for one in wanted]))
        return self._name_parts(check_characters(wanted, len(text)), "passage", "passage")

    def find_region(self, wanted: Region | str) -> Region:
        """A part of the prompt: a region, the first one of that name, or a text that occurs."""
        if isinstance(wanted, Region):
            return wanted
        if not isinstance(wanted, str) or not wanted:
            raise InputError(
                f"within must be a region of the prompt, its name, or a text that occurs in it, got {wanted!r}.",
                code="E_OPTION",
            )
        if named := [one for one in self.regions if one.name == wanted]:
            return named[0]
        if wanted not in self.text[: self.answer_start]:
            names = ", ".join(dict.fromkeys(one.name for one in self.regions))
            raise InputError(
                f"The prompt has no region {wanted[:60]!r}, and this text does not occur in it. Regions: {names}."
            )
        return self.split([wanted])[0]

    def _split_by_name(self, by: str) -> tuple[Region, ...]:
        if by in ("role", "document"):
            spoken = (region for region in self.regions if region.kind != "other")
            kept = self.list_documents() if by == "document" else tuple(spoken)
            if not kept:
                thing = "documents" if by == "document" else "roles"
                raise InputError(
                    f'This prompt has no {thing}: it was not made from messages with {thing}. Split it by "passage" or '
                    '"sentence", or pass a list of texts that occur in it.'
                )
            return kept
        if by not in SPLITTERS:
            raise InputError(
                f"A prompt cannot be split by {by!r}.{suggest_nearest(by, UNITS)} Available: {', '.join(UNITS)}; a "
                "list of texts, a list of (start, stop) in characters, or a function of the text.",
                code="E_OPTION",
            )
        # Of what is no template text; of all of the prompt if it has no roles.
        own = [region for region in self.regions if region.kind != "other" or region.name == WHOLE]
        contents = [region.characters for region in own if region.characters is not None] or [(0, self.answer_start)]
        places = [place for within in contents for place in SPLITTERS[by](self.text, within)]
        return self._name_parts(places, by, "sentence" if by == "sentence" else "passage")

    def _name_parts(self, places: Sequence[Characters], name: str, kind: str) -> tuple[Region, ...]:
        named = [NamedPart(f"{name} {n}", kind, place) for n, place in enumerate(places, 1)]
        regions = assign_tokens(self.text, list_offsets(self.pieces, self.prompt_length), named)
        trimmed = [trim_blanks(self.text, region.characters or (0, 0)) for region in regions]
        documents = self.list_documents()
        return tuple(
            identify_part(replace(region, text=self.text[slice(*place)], characters=place), documents)
            for region, place in zip(regions, trimmed, strict=True)
        )

    def list_documents(self) -> tuple[Region, ...]:
        """Documents and results of tools, in order; each entry where such a result is a JSON list of documents."""
        found = list(list_document_regions(self.regions))
        offsets = list_offsets(self.pieces, self.prompt_length)
        parts = [NamedPart(r.name, "tool", r.characters) for r, entry in found if entry and r.characters is not None]
        tokens = {one.name: one for one in assign_tokens(self.text, offsets, parts)}
        return tuple(
            region if entry is None else replace(tokens.get(region.name, region), id=entry.id, metadata=entry.metadata)
            for region, entry in found
        )

    def with_documents(self, documents: Sequence[DocumentLike]) -> "Prompt":
        """The prompt with these documents, which occur in it, as regions that have their ids and metadata.

        Documents that do not occur in it are named in a note: the model did not read them.
        """
        return add_documents(self, read_documents(documents))

    # --- where prompts come from ------------------------------------------------------------------------------------

    @classmethod
    def from_text(
        cls,
        model: "ModelLike",
        text: str,
        answer: "str | Sequence[int] | None" = None,
        *,
        special: bool = False,
        documents: Sequence[DocumentLike] | None = None,
    ) -> "Prompt":
        """A prompt from a text, and the answer from a text or from token ids.

        documents: texts that the answer may come from, with ids and metadata (documents.py lists the forms). If none of
        them occurs in the text they are put before it, separated by blank lines, and a note says so.

        special: what looks like a special token in the text is that token, as in a prompt on which a chat template was
        already used. An end token that the tokenizer adds after a text is left out: a model does not continue after it.
        """
        if not isinstance(special, bool):
            raise InputError(f"special must be True or False, got {special!r:.80}.", code="E_OPTION")
        model = open_language_model(model)
        if documents is not None:
            read = read_documents(documents)
            whole_text, notes = write_documents(text, read)
            prompt = add_documents(cls.from_text(model, whole_text, special=special), read, notes)
            return add_answer(model, prompt, answer, special=special)
        if (start := model.decoder_start) is not None:
            return add_answer(model, make_source(cls, model, text, start), answer, special=special)
        one = tokenize_special(model, text) if special else drop_end_token(model, model.tokenize(text, "the prompt"))
        notes = model.notes + model.note_unknown([one], ["the prompt"])
        notes += note_missing_start(model.tokenizer, one.ids) if special else ()
        if not special and (found := find_special_text(model.tokenizer, text)):
            notes += (f"{found!r} in the prompt is read as plain text. Pass special=True to read it as that token.",)
        whole = (Region(WHOLE, "other", 0, len(one), text, (0, len(text))),)
        return add_answer(model, cls(tuple(one.ids), one.plain, len(one), whole, notes), answer, special=special)

    @classmethod
    def from_messages(
        cls,
        model: "ModelLike",
        messages: Sequence[MessageLike],
        *,
        answer: "str | Sequence[int] | None" = None,
        tools: Sequence[ToolLike] | None = None,
        documents: Sequence[DocumentLike] | None = None,
        **template: Json,
    ) -> "Prompt":
        """A chat, by the template of the tokenizer: roles, tool definitions, calls and results, thinking and documents.

        messages: dictionaries with "role" and "content", as in the API of OpenAI. If the last one is of the assistant
        and no answer is given, it is the answer. template: more variables of the template, such as enable_thinking.
        documents: of LangChain, of LlamaIndex, dictionaries, (id, text, metadata) or texts. They are found in the
        messages or, if none of them occurs there, written by the template. A template that writes no documents gets
        them before the last message of the user, and a note says so.
        """
        model = open_language_model(model)
        read = () if documents is None else read_documents(documents)

        def render(chat: Sequence[ChatMessage], written: Sequence[ChatMessage] | None) -> RenderedChat:
            answered = answer is not None
            return render_chat(model, chat, tools=tools, documents=written, has_answer=answered, **template)

        chat, notes = render_with_documents(render, messages, read)
        one = tokenize_special(model, chat.text)
        assigned = assign_tokens(chat.text, list_offsets(one, len(one)), chat.parts)
        regions = fill_gaps(chat.text, len(one), assigned, chat.filler)
        prompt = cls(tuple(one.ids), one.plain, len(one), regions, (*model.notes, *chat.notes))
        prompt = add_documents(prompt, read, notes) if read else prompt
        return add_answer(model, prompt, chat.answer if answer is None else answer, special=answer is None)

    @classmethod
    def from_tokens(
        cls, model: "ModelLike", ids: Iterable[int], answer_ids: Iterable[int] = (), text: str | None = None
    ) -> "Prompt":
        """A prompt from token ids, such as `prompt_token_ids` and `token_ids` of vLLM.

        text: what the tokens should say, prompt and answer, if it is known; ids that say something else are refused.
        """
        model = open_language_model(model, needs_tokenizer=False)
        before, after = (check_ids(given, what) for given, what in ((ids, "ids"), (answer_ids, "answer_ids")))
        if not before:
            raise InputError("A prompt needs at least one token, but ids is empty.", code="E_TXT_EMPTY")
        if text is not None and not isinstance(text, str):
            raise InputError(f"text must be a text, got {type(text).__name__}.", code="E_TXT_TYPE")
        whole = (*before, *after)
        model.check_token_ids(whole)
        pieces = spell_tokens(model, whole)
        notes = model.notes
        if model.tokenizer is not None:
            notes += note_missing_start(model.tokenizer, before)
            if text is not None:
                compare_texts(model.tokenizer, whole, pieces.text or "", text)
        end = find_text_end(pieces, len(before))
        region = Region(WHOLE, "other", 0, len(before), (pieces.text or "")[:end], (0, end))
        return cls(whole, pieces, len(before), (region,), notes)

    @classmethod
    def from_log(cls, model: "ModelLike", record: MessageLike, **template: Json) -> "Prompt":
        """What another engine logged: a request and its response, of vLLM or of an API like that of OpenAI.

        record: prompt_token_ids, messages (with tools and documents) or prompt; token_ids, choices or text; logprobs;
        or these in "request" and "response". Of several choices the first is taken, and a note says so. Where only a
        text is known, it is tokenised once and a note says so. check_answer() says whether this model finds the answer
        as likely as the log does.
        """
        log = join_request_and_response(record)
        model = open_language_model(model, needs_tokenizer=find_first(log, PROMPT_IDS) is None)
        answer = read_logged_answer(log)
        # The tools and documents of a log; an empty list is none.
        given = {name: log.get(name) for name in ("tools", "documents")}
        more = {name: one for name, one in given.items() if one is not None and list_entries(one) != []} | template
        if is_rendered_whole(model, log, answer) and writes_calls(model, log["messages"], answer, more):
            log = {**log, "messages": [*log["messages"], answer.message]}
        whole = make_logged_prompt(model, log, more)
        if answer.is_empty:
            return whole
        if not whole.answer and answer.ids is None and not answer.text and (calls := list_logged_calls(answer)):
            whole = add_answer(model, whole, json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False))
            whole = replace(whole, notes=(*whole.notes, CALLS_AS_JSON))
        whole = whole if whole.answer else add_logged_answer(model, whole, answer)
        whole = replace(whole, notes=(*whole.notes, *answer.notes))
        has_all = answer.log_probabilities is not None and len(answer.log_probabilities) == len(whole.answer)
        return replace(whole, logged=answer.log_probabilities if has_all else None)


# --- documents --------------------------------------------------------------------------------------------------------


def add_documents(prompt: Prompt, documents: Sequence[RetrievedDocument], notes: Sequence[str] = ()) -> Prompt:
    """The prompt with a region for each document, with its id and metadata. notes: on how they came there."""
    named = {f"document {number}": one for number, one in enumerate(documents, 1)}
    written = [region.name for region in prompt.regions if region.kind == "document"]
    if not written:
        text = prompt.text[: prompt.answer_start]
        places = locate_documents(text, documents)
        found = [(name, at) for name, at in zip(named, places, strict=True) if at is not None]
        own = [NamedPart(name, "document", (at[0], skip_blanks(text, at[1]))) for name, at in found]
        kept = [NamedPart(r.name, r.kind, r.characters) for r in prompt.regions if is_cut(r) and r.characters]
        parts = cut_parts(text, kept, own)
        assigned = assign_tokens(text, list_offsets(prompt.pieces, prompt.prompt_length), parts)
        prompt = replace(prompt, regions=fill_gaps(text, prompt.prompt_length, assigned, "template"))
        written = [region.name for region in prompt.regions if region.kind == "document"]
    missing = [named[name].id or name for name in named if name not in written]
    if len(missing) == len(named):
        raise InputError(
            "None of the documents occurs in the prompt. Pass their texts as they are written there, or the question "
            "alone: the documents are then put before it."
        )
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        notes = (*notes, f"Not in the prompt, so the model did not read it: {listed}.")
    identified = (
        replace(trim_region(region), id=named[region.name].id, metadata=named[region.name].metadata)
        if region.kind == "document" and region.name in named
        else region
        for region in prompt.regions
    )
    return replace(prompt, regions=tuple(identified), notes=(*prompt.notes, *notes))


def trim_region(region: Region) -> Region:
    """The same tokens, with the text and the characters that are no white space."""
    start = region.characters[0] if region.characters is not None else 0
    blanks = len(region.text) - len(region.text.lstrip())
    text = region.text.strip()
    own = None if region.characters is None else (start + blanks, start + blanks + len(text))
    return replace(region, text=text, characters=own)


def is_cut(region: Region) -> bool:
    """Whether a region says something of its own, around documents inside it."""
    return region.kind != "other" or region.name == WHOLE


# --- logs -------------------------------------------------------------------------------------------------------------


def make_logged_prompt(model: "Model", record: LogRecord, more: Mapping[str, Any]) -> Prompt:
    ids, messages, text = find_first(record, PROMPT_IDS), record.get("messages"), record.get("prompt")
    if ids is not None:
        prompt = Prompt.from_tokens(model, ids, text=text if isinstance(text, str) else None)
        if messages is not None and getattr(model.tokenizer, "chat_template", None):
            return add_roles(prompt, Prompt.from_messages(model, messages, **more))
        return prompt.with_documents(more["documents"]) if "documents" in more else prompt
    if messages is not None:
        return Prompt.from_messages(model, messages, **more)
    if isinstance(text, str):
        note = "The prompt was given as text and tokenised here; the engine may have read other tokens."
        is_rendered = find_special_text(model.tokenizer, text) is not None  # else engines add the usual tokens
        prompt = Prompt.from_text(model, text, special=is_rendered, documents=more.get("documents"))
        return replace(prompt, notes=(*prompt.notes, note))
    raise InputError(
        f"The log has no prompt: it has {', '.join(map(str, record)) or 'nothing'}. Pass prompt_token_ids, messages or "
        "prompt."
    )


def add_roles(prompt: Prompt, chat: Prompt) -> Prompt:
    """The prompt with the regions of a chat that says the same, perhaps in other tokens."""
    if chat.without_answer().text != prompt.text:
        note = "By the chat template of this model the messages of the log give other tokens: no roles are known."
        return replace(prompt, notes=(*prompt.notes, note))
    known = [region for region in chat.regions if region.kind != "other" and region.characters is not None]
    parts = [NamedPart(region.name, region.kind, region.characters or (0, 0)) for region in known]
    regions = assign_tokens(prompt.text, list_offsets(prompt.pieces, len(prompt)), parts)
    documents = {region.name: region for region in known if region.kind == "document"}
    regions = [
        replace(region, id=documents[region.name].id, metadata=documents[region.name].metadata)
        if region.name in documents
        else region
        for region in regions
    ]
    return replace(prompt, regions=fill_gaps(prompt.text, len(prompt), regions, "template" if parts else WHOLE))


def is_rendered_whole(model: "Model", record: LogRecord, answer: LoggedAnswer) -> bool:
    """Whether the answer is known as a message only, which the template writes after the others."""
    if answer.message is None or answer.ids is not None or find_first(record, PROMPT_IDS) is not None:
        return False
    has_tokens = answer.tokens is not None and answer.text is not None
    is_known = has_tokens and find_token_ids(model.tokenizer, answer.tokens or (), answer.text or "") is not None
    return isinstance(record.get("messages"), list) and not is_known


def writes_calls(
    model: "Model", messages: Sequence[MessageLike], answer: LoggedAnswer, more: Mapping[str, Any]
) -> bool:
    """Whether the template writes the tool calls of an answer that has nothing else."""
    calls = list_logged_calls(answer)
    if not calls or answer.text:
        return True
    try:
        written = Prompt.from_messages(model, [*messages, answer.message or {}], **more).answer_text
    except InputError:
        Prompt.from_messages(model, messages, **more)  # raises where the other messages are refused too
        return False
    return all(call["name"] in written for call in calls)


def add_logged_answer(model: "Model", prompt: Prompt, answer: LoggedAnswer) -> Prompt:
    """The prompt with the logged answer, by the first of these that the log has: ids, tokens as texts, text."""
    if answer.ids is not None:
        whole = append_tokens(model, prompt, check_ids(answer.ids, "token_ids"))
        if answer.text and model.tokenizer is not None:
            compare_texts(model.tokenizer, whole.answer_ids, whole.answer_text, answer.text)
        return whole
    if answer.tokens is not None and answer.text is not None:
        ids = find_token_ids(model.tokenizer, answer.tokens, answer.text)
        if ids is not None:
            return append_tokens(model, prompt, ids)
    return add_answer(model, prompt, answer.text or "")


# --- tokens -----------------------------------------------------------------------------------------------------------


def open_language_model(model: "ModelLike", *, needs_tokenizer: bool = True) -> "Model":
    from whyformer._model.loading import open as open_model  # this file is imported by model.py
    from whyformer._model.model import Model

    opened = model if isinstance(model, Model) else open_model(model)
    if opened.tokenizer is None and (needs_tokenizer or opened.kind == "image"):
        raise InputError(
            f"{opened.name} was opened without a tokenizer, so it takes no texts. Open a language model with its "
            "tokenizer, or make the prompt from token ids: Prompt.from_tokens(model, ids, answer_ids)."
        )
    return opened


def list_offsets(pieces: Pieces, length: int) -> list[Characters]:
    """The characters of each of the first tokens; an empty range where it covers none."""
    return [span or (0, 0) for span in pieces.spans[:length]]


def find_text_end(pieces: Pieces, length: int) -> int:
    """Where the first tokens end in the text."""
    return max((span[1] for span in pieces.spans[:length] if span is not None), default=0)


def tokenize_special(model: "Model", text: str) -> TokenizedText:
    """A text whose special tokens are written in it; none is added."""
    check_text(text, "the prompt")
    tokenizer = model.tokenizer
    encoding = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, truncation=False, verbose=False
    )
    ids = [int(i) for i in encoding["input_ids"]]
    model.check_token_ids(ids)
    if tokenizer.is_fast:
        names, padding = tuple(tokenizer.convert_ids_to_tokens(ids)), (False,) * len(ids)
        spans = correct_offsets(text, names, encoding["offset_mapping"], padding)
        pieces = Pieces(names, find_special(model, ids), padding, spans, text)
    elif (pieces := spell_tokens(model, ids)).text != text:
        raise InputError(
            f"The tokenizer of {model.name} reports no offsets, and its tokens do not spell the text. Use its fast "
            "version.",
            code="E_MODEL_TOKENIZER",
        )
    return TokenizedText.from_pieces(ids, pieces)


def find_special(model: "Model", ids: Sequence[int]) -> tuple[bool, ...]:
    if model.tokenizer is None:
        return (False,) * len(ids)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")  # one of them may also be the unknown token
    around = {getattr(model.tokenizer, name, None) for name in names}
    special = set(model.tokenizer.all_special_ids) - ({model.tokenizer.unk_token_id} - around)
    return tuple(i in special for i in ids)


def spell_tokens(model: "Model", ids: Sequence[int], first: int = 0) -> Pieces:
    """Token ids from `first` on as pieces, with the text that they spell; numbers and no text without a tokenizer."""
    own = ids[first:]
    names, padding = model.name_ids(own), (False,) * len(own)
    if model.tokenizer is None:
        return Pieces(names, padding, padding, (None,) * len(own))
    text, spans = decode_with_spans(model.tokenizer, ids, first)
    return Pieces(names, find_special(model, own), padding, tuple(spans), text)


def drop_end_token(model: "Model", one: TokenizedText) -> TokenizedText:
    end, kept = getattr(model.tokenizer, "eos_token_id", None), len(one)
    while kept > 1 and one.special[kept - 1] and one.ids[kept - 1] == end:
        kept -= 1
    return one.take(range(kept))


def add_answer(
    model: "Model", prompt: Prompt, answer: "str | Sequence[int] | None", *, special: bool = False
) -> Prompt:
    """The prompt with an answer after it; a text is tokenised here, once."""
    if answer is None:
        return prompt
    if not isinstance(answer, str):
        return append_tokens(model, prompt, check_ids(answer, "answer"))
    if not answer:
        raise InputError("The answer is empty. Leave it out, or pass the text that the model answered.")
    if answer.strip():  # a line break may be an answer
        check_text(answer, "the answer")
    before = "" if prompt.source_length else prompt.text
    ids, is_joined = encode_continuation(model.tokenizer, before, answer, special=special)
    notes = ["The answer was given as text and tokenised here; the model may have generated other tokens."]
    if not is_joined and not prompt.source_length:
        notes.append(
            "The tokenizer would join the end of the prompt and the start of the answer in one token; the answer was "
            "tokenised on its own."
        )
    return replace(append_tokens(model, prompt, ids), notes=(*prompt.notes, *notes))


def append_tokens(model: "Model", prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """The prompt with these tokens as its answer."""
    whole, source = (*prompt.ids, *ids), prompt.source_length
    model.check_token_ids(whole, source=source)
    own = prompt.prompt_length if source else 0  # what a decoder writes does not continue the text of the source
    after, before, start = spell_tokens(model, whole[own:], len(prompt.ids) - own), prompt.pieces, len(prompt.text)
    pieces = Pieces(
        before.pieces + after.pieces,
        before.special + after.special,
        before.padding + after.padding,
        before.spans + tuple(None if span is None else (span[0] + start, span[1] + start) for span in after.spans),
        None if after.text is None else prompt.text + after.text,
        before.second,
        (),
        before.segment_names,
    )
    return replace(prompt, ids=whole, pieces=pieces)


def cut_prompt(prompt: Prompt, length: int) -> Prompt:
    """The first tokens of a prompt."""
    pieces = take_pieces(prompt.pieces, range(min(length, len(prompt))))
    end = max(find_text_end(pieces, length), pieces.second or 0)
    text = None if pieces.text is None else pieces.text[:end]
    return replace(prompt, ids=prompt.ids[:length], pieces=replace(pieces, text=text))


def make_source(kind: type[Prompt], model: "Model", text: str, start: int) -> Prompt:
    """A text that an encoder reads, and the token that the decoder begins with."""
    one = model.tokenize(text, "the source")
    names, special = (*one.pieces, *model.name_ids([start])), (*one.special, True)
    pieces = Pieces(names, special, (*one.padding, False), (*one.spans, None), f"{text}\n", len(text) + 1, (), STREAMS)
    parts = (
        Region("source", "other", 0, len(one), text, (0, len(text))),
        Region("start", "other", len(one), len(one) + 1, ""),
    )
    notes = model.notes + model.note_unknown([one], ["the source"])
    return kind((*one.ids, start), pieces, len(one) + 1, parts, notes, source_length=len(one))


def fill_gaps(text: str, length: int, regions: Sequence[Region], filler: str) -> tuple[Region, ...]:
    """The regions with the tokens between them as regions of kind "other", so that every token is in one."""
    filled: list[Region] = []
    at, end = 0, 0  # tokens and characters so far
    for region in (*regions, Region("", "other", length, length, "")):
        begin, stop = region.characters or (len(text), end)
        if region.start > at:
            filled.append(Region(filler, "other", at, region.start, text[end:begin], (end, begin)))
        own = replace(region, start=max(region.start, at))
        if own.stop > own.start:
            filled.append(own)
            at, end = own.stop, stop
    return tuple(filled)


# --- checks -----------------------------------------------------------------------------------------------------------


def check_ids(given: Any, what: str) -> tuple[int, ...]:
    """Token ids as numbers, from a list, an array or a tensor."""
    found = list_entries(given)
    if found is None:
        raise InputError(f"{what} must be a list of token ids, got {type(given).__name__}.", code="E_TXT_TYPE")
    if len(found) == 1 and isinstance(found[0], list):  # a batch of one
        found = found[0]
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int):
            raise InputError(f"{what} must be a list of token ids, but it contains {one!r:.80}.", code="E_TXT_TYPE")
        if abs(one) >= LARGEST_ID:
            raise InputError(f"{what} contains a number of {one.bit_length()} bits, which is no token id.")
    return tuple(found)


def note_missing_start(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    """A note if the tokenizer puts a token before every text, and these tokens begin without it."""
    usual = list(tokenizer("a", verbose=False)["input_ids"])
    plain = list(tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"])
    if not usual or usual[: len(plain)] == plain or usual[0] == ids[0] or usual[0] not in tokenizer.all_special_ids:
        return ()
    first = tokenizer.convert_ids_to_tokens([usual[0]])[0]
    return (f"The tokens do not begin with {first}, which the tokenizer of this model puts before every text.",)


def compare_texts(tokenizer: Tokenizer, ids: Sequence[int], decoded: str, given: str) -> None:
    """Refuse tokens that say something else than the text that was given for them; blanks and case do not count."""
    plain = tokenizer.decode(list(ids), skip_special_tokens=True)
    if any(squeeze(one) == squeeze(given) for one in (decoded, plain)):
        return
    at = next((i for i, (a, b) in enumerate(zip(plain, given, strict=False)) if a != b), min(len(plain), len(given)))
    raise InputError(
        f"The tokens say {plain[at : at + 40]!r} where the text says {given[at : at + 40]!r} (character {at}): they "
        "are from another tokenizer, or the text is not theirs. Pass the tokens of this model, or leave the text out."
    )


def squeeze(text: str) -> str:
    return "".join(text.split()).casefold()
