"""TwoStreams: a model with an encoder and a decoder, as a model that reads one sequence: the source, then the prefix.

    source                    prefix
    the red house </s>        <start> la maison        ->  logits after every token of the prefix

The prefix is what the decoder has written so far. Encoder and decoder each get their part of the joined ids, and what
is returned for the prefix gets places for the source before it. Tokens, masks, scores and targets can then be those of
a language model that reads the source before it writes, and both embeddings are explained. Heads that classify (BART
on NLI) read the source again in the decoder, moved by one: their prefix is made of the source.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whyformer._model.encoded import EncodedBatch
from whyformer._model.text import TokenizedText, pad_texts
from whyformer._model.unwrap import unwrap
from whyformer._plain.tokens import Stream
from whyformer.errors import InputError, UnsupportedModel

if TYPE_CHECKING:
    from whyformer._model.model import Model

PREFIX = "prefix"  # an input [batch 1 1 1 prefix] that says how long the prefix is; five axes: no sequence and no image
SOURCE_NAMES = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
SPAN_FIELDS = ("start_logits", "end_logits")
SOUND_INPUTS = ("input_features", "input_values")
SOUND = "sound"  # an input [batch 1 1 channel time]
SECONDS = 0.02  # a frame of Whisper: two steps of 160 samples, at 16,000 a second
WHISPER_PARTS = ("conv1", "conv2", "embed_positions", "layers", "layer_norm")


class TwoStreams(nn.Module):
    """Computes what the model computes, from source and prefix in one row.

    Made by `wrap_two_streams`, which names the class after that of the model, so that messages name the model.
    """

    main_input_name = "input_ids"
    reads_text = True  # the encoder does

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.model = module
        self.config: Any = module.config
        self.generation_config = getattr(module, "generation_config", None)

    def __reduce__(self) -> "tuple[Callable[[nn.Module], TwoStreams], tuple[nn.Module]]":
        return wrap_two_streams, (self.model,)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()  # type: ignore[operator]

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.get_output_embeddings()  # type: ignore[operator]

    @property
    def writes(self) -> bool:
        """Whether it writes tokens, and does not classify."""
        try:
            return self.get_output_embeddings() is not None
        except (AttributeError, NotImplementedError):
            return False

    @property
    def start(self) -> int:
        """The token that a decoder begins with."""
        found = [getattr(one, "decoder_start_token_id", None) for one in (self.config, self.generation_config)]
        text = self.config.get_text_config(decoder=True)
        found += [getattr(text, name, None) for name in ("bos_token_id", "pad_token_id")]
        start = next((one for one in found if isinstance(one, int)), None)
        if start is None:
            raise UnsupportedModel(
                f"{type(self).__name__} does not say which token its decoder begins with. Set decoder_start_token_id "
                "in its config."
            )
        return start

    def read_source(self, source: EncodedBatch) -> EncodedBatch:
        """The source as tokens."""
        return source

    def encode(self, ids: Tensor, mask: Tensor, **other: Tensor) -> dict[str, Any]:
        """What the model is given for the source."""
        return {"input_ids": ids, "attention_mask": mask}

    def repeat_source(self, source: EncodedBatch) -> tuple[Tensor, Tensor]:
        """The ids that a model which classifies gives its decoder, those of the source moved by one, and their mask.

        What comes first differs (the start token; in MBart the last token, a language), so they are read in a run.
        """
        ids = source.inputs[source.main]
        given = {name: value for name, value in source.inputs.items() if name in SOURCE_NAMES}
        with keep_ids(self.model.get_decoder()) as seen, torch.no_grad():  # type: ignore[operator]
            answered = self.model(**given)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].shape != ids.shape:
            raise UnsupportedModel(
                f"What {type(self).__name__} gives its decoder is not its source. Pass decoder_input_ids."
            )
        repeated = seen[0].clone()
        if source.token_mask is None or bool(source.token_mask.all()):
            return repeated, torch.ones_like(repeated, dtype=torch.bool)
        return repeated, self.mask_repeated(given, repeated, source.token_mask.to(ids.device), answered)

    def mask_repeated(self, given: dict[str, Any], repeated: Tensor, real: Tensor, answered: Any) -> Tensor:
        """Which repeated ids are tokens, so that the model answers what it answers itself, without such a mask.

        As many as the source has, or one more: models that read where the source ends, or one behind (T5Gemma).
        """
        moved = torch.cat([torch.ones_like(real[:, :1]), real[:, :-1]], 1)
        for mask in (real, moved):
            with torch.no_grad():
                own = self.model(**given, decoder_input_ids=repeated, decoder_attention_mask=mask.long())
            # What a span model says of padding is not read.
            kept = real if own[0].shape[:2] == real.shape else slice(None)
            if torch.allclose(own[0][kept], answered[0][kept], rtol=1e-4, atol=1e-5):
                return mask
        raise InputError(
            f"In this batch the decoder of {type(self.model).__name__} reads padding, which changes its answer. Put "
            "padding behind the text, or pass one example at a time."
        )

    def forward(self, input_ids: Tensor, prefix: Tensor, attention_mask: Tensor, **other: Tensor) -> Any:
        length = prefix.size(-1)
        source = input_ids.size(1) - length
        given = self.encode(input_ids[:, :source], attention_mask[:, :source], **other)
        written = {"decoder_input_ids": input_ids[:, source:], "decoder_attention_mask": attention_mask[:, source:]}
        takes = signature(self.model.forward).parameters
        inputs = {name: value for name, value in (given | written).items() if name in takes}
        returned = self.model(**inputs, return_dict=True)
        for name in ("logits", "last_hidden_state", *SPAN_FIELDS):
            found = returned.get(name)
            if found is not None and found.dim() == (2 if name in SPAN_FIELDS else 3) and found.size(1) == length:
                lowest = float(found.detach().min()) if name in SPAN_FIELDS else 0.0
                before = found.new_full((len(found), source, *found.shape[2:]), lowest)
                returned[name] = torch.cat([before, found], 1)
        return returned


class SoundStreams(TwoStreams):
    """The same for a Whisper, whose encoder reads sound: the frames that its convolutions cut are tokens.

    A frame is 20 ms. Its embedding is what the convolutions make of the sound there (five steps of 10 ms); that
    of a frame that is left out is the mean of all frames. Frame i has the id `vocabulary + i`, any other is left out.
    """

    reads_text = False

    @property
    def frames(self) -> int:
        return self.config.max_source_positions

    def write(self, features: Tensor) -> list[Tensor]:
        """For each sound, the ids that the model writes before its last token, beginning with the first it is given."""
        ends = {getattr(self.model.generation_config, name, None) for name in ("eos_token_id", "pad_token_id")}
        with keep_ids(self.model.get_decoder()) as seen, torch.no_grad():  # type: ignore[operator]
            written = self.model.generate(input_features=features)  # type: ignore[operator]
        begins, rows = seen[0][0].tolist(), []
        for row in written.tolist():
            row = row if row[: len(begins)] == begins else [*begins, *row]  # some versions leave it out
            while len(row) > len(begins) + 1 and row[-1] in ends:
                row.pop()
            rows.append(torch.tensor(row[:-1] if len(row) > len(begins) else row))
        return rows

    def read_source(self, source: EncodedBatch) -> EncodedBatch:
        sound, count = source.inputs[source.main], self.frames
        wanted = (self.config.num_mel_bins, 2 * count)
        if sound.dim() != 3 or tuple(sound.shape[1:]) != wanted:
            raise InputError(
                f"{source.main} has the shape {list(sound.shape)}; {type(self).__name__} needs [batch, {wanted[0]}, "
                f"{wanted[1]}], as its feature extractor makes them."
            )
        return self.name_frames(source, tuple(f"{SECONDS * i:.2f}s" for i in range(count)))

    @property
    def vocabulary(self) -> int:
        return self.config.get_text_config(decoder=True).vocab_size

    def name_frames(self, source: EncodedBatch, names: tuple[str, ...]) -> EncodedBatch:
        """The batch with frames of these names as tokens."""
        sound, count = source.inputs[source.main], len(names)
        ids = torch.arange(count, device=sound.device).expand(source.batch, -1) + self.vocabulary
        others = {name: tensor for name, tensor in source.inputs.items() if name.startswith("decoder_")}
        everything = torch.ones(source.batch, count, dtype=torch.bool)
        sound = sound[:, None] if sound.dim() == 2 else sound
        return replace(
            source,
            inputs={"input_ids": ids, SOUND: sound[:, None, None], **others},
            main="input_ids",
            token_mask=everything,
            special_mask=~everything,
            words=(names,) * source.batch,
        )

    def encode(self, ids: Tensor, mask: Tensor, **other: Tensor) -> dict[str, Any]:
        encoder: Any = self.model.get_encoder()  # type: ignore[operator]
        states = encoder.conv1(other[SOUND][:, 0, 0])
        states = nn.functional.gelu(encoder.conv2(nn.functional.gelu(states))).transpose(1, 2)
        state = self.pick_frames(states, ids, mask) + encoder.embed_positions.weight[: states.size(1)]
        for layer in encoder.layers:
            found = layer(state, None)
            state = found if isinstance(found, Tensor) else found[0]
        return {"encoder_outputs": (encoder.layer_norm(state),)}

    def pick_frames(self, states: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """The states of the frames with these ids; the mean of all where one is left out."""
        batch, count, width = states.shape
        table = torch.cat([states, states.mean(1, keepdim=True)], 1).reshape(-1, width)
        is_there = (ids >= self.vocabulary) & mask.bool()
        rows = (count + 1) * torch.arange(batch, device=ids.device)[:, None]
        index = torch.where(is_there, ids - self.vocabulary, count) + rows
        return nn.functional.embedding(index, table)


class FrameStreams(SoundStreams):
    """The same for any other encoder of sound (Speech2Text, Moonshine): what enters its first layer are the frames.

    Their length in seconds is not known. Positions are a part of a frame where they are added before the first layer.
    """

    def read_source(self, source: EncodedBatch) -> EncodedBatch:
        mask = source.inputs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise InputError(
                f"The sounds for {type(self).__name__} have different lengths. Pass one at a time, without padding."
            )
        sound = source.inputs[source.main]
        return self.name_frames(source, tuple(map(str, range(self.count_frames(sound)))))

    def count_frames(self, sound: Tensor) -> int:
        seen: list[int] = []

        def look(states: Tensor) -> Tensor:
            seen.append(states.size(1))
            return states

        with torch.no_grad(), self.change_frames(look):
            self.model.get_encoder()(sound)  # type: ignore[operator]
        return seen[0]

    @contextmanager
    def change_frames(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """While this lasts, the first layer of the encoder is given other frames."""

        def replace_states(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            if args:
                return (change(args[0]), *args[1:]), given
            return args, {**given, "hidden_states": change(given["hidden_states"])}

        layer = find_entry_layer(self.model.get_encoder())  # type: ignore[operator]
        assert layer is not None
        handle = layer.register_forward_pre_hook(replace_states, prepend=True, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def encode(self, ids: Tensor, mask: Tensor, **other: Tensor) -> dict[str, Any]:
        sound, name = other[SOUND][:, 0, 0], str(self.model.main_input_name)
        return {name: sound[:, 0] if name == "input_values" else sound}

    def forward(self, input_ids: Tensor, prefix: Tensor, attention_mask: Tensor, **other: Tensor) -> Any:
        ids, mask = (one[:, : input_ids.size(1) - prefix.size(-1)] for one in (input_ids, attention_mask))
        with self.change_frames(lambda states: self.pick_frames(states, ids, mask)):
            return super().forward(input_ids, prefix, attention_mask, **other)


def find_entry_layer(encoder: nn.Module) -> nn.Module | None:
    stacks = (getattr(part, "layers", None) for part in encoder.modules())
    return next((stack[0] for stack in stacks if isinstance(stack, nn.ModuleList) and len(stack)), None)


@contextmanager
def keep_ids(decoder: nn.Module) -> Iterator[list[Any]]:
    """Inside, the ids that a decoder is given are added to this list."""
    seen: list[Any] = []

    def keep(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        seen.append(given.get("input_ids", args[0] if args else None))

    handle = decoder.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def wrap_two_streams(module: nn.Module) -> TwoStreams:
    kind = choose_streams(module)
    assert kind is not None
    return type(type(module).__name__, (kind,), {})(module)


def choose_streams(module: nn.Module) -> type[TwoStreams] | None:
    """How a model is read whose decoder reads tokens; None if it is not known how."""
    main, encoder = module.main_input_name, module.get_encoder()  # type: ignore[operator]
    if main == "input_ids":
        return TwoStreams
    if all(hasattr(encoder, part) for part in WHISPER_PARTS) and main == "input_features":
        return SoundStreams
    takes_text = "input_ids" in signature(module.forward).parameters
    has_layers = isinstance(encoder, nn.Module) and find_entry_layer(encoder) is not None
    return FrameStreams if main in SOUND_INPUTS and has_layers and not takes_text else None


def has_two_streams(module: nn.Module) -> bool:
    """Whether this is a model of transformers with an encoder of texts or sound, and a decoder that reads tokens."""
    inner = unwrap(module)
    if isinstance(inner, TwoStreams) or not getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return False
    main = getattr(inner, "main_input_name", None)
    if main not in ("input_ids", *SOUND_INPUTS) or not hasattr(inner, "get_encoder"):
        return False
    takes = {main, "decoder_input_ids"} <= signature(inner.forward).parameters.keys()
    return takes and choose_streams(inner) is not None


def count_streams(encoded: EncodedBatch) -> tuple[int, ...]:
    """The lengths of source and prefix, of a batch that has both; else ()."""
    if PREFIX not in encoded.inputs:
        return ()
    prefix = encoded.inputs[PREFIX].size(-1)
    return encoded.inputs[encoded.main].size(1) - prefix, prefix


# --- batches ----------------------------------------------------------------------------------------------------------


def add_prefix(model: "Model", module: TwoStreams, source: EncodedBatch) -> EncodedBatch:
    """The batch with the prefix that was given beside the source, or the one that the decoder begins with."""
    source = module.read_source(source)
    given, mask = (source.inputs.get(f"decoder_{name}") for name in ("input_ids", "attention_mask"))
    repeats = given is None and not module.writes  # the head reads the source again
    if repeats:
        given, mask = module.repeat_source(source)
    elif given is None:
        ids = source.inputs[source.main]
        given = ids.new_full((len(ids), 1), module.start)
    real = torch.ones_like(given, dtype=torch.bool) if mask is None else mask.bool()
    if given.dim() != 2 or len(given) != source.batch or real.shape != given.shape:
        raise InputError(
            f"decoder_input_ids has the shape {list(given.shape)} and its mask {list(real.shape)}, for a batch of "
            f"{source.batch}. Pass [batch, token]."
        )
    special = set(model.tokenizer.all_special_ids) if model.tokenizer is not None else set(given[:, 0].tolist())
    prefixes = []
    for row, is_real in zip(given.tolist(), real.tolist(), strict=True):
        marks = tuple(i in special and r for i, r in zip(row, is_real, strict=True))
        padding, nothing = tuple(not r for r in is_real), (None,) * len(row)
        prefixes.append(TokenizedText(model.name_ids(row), marks, padding, nothing, "", inputs={"input_ids": row}))
    return append_prefixes(model, source, prefixes)


def append_prefixes(model: "Model", source: EncodedBatch, prefixes: Sequence[TokenizedText]) -> EncodedBatch:
    """Source and prefix of each example in one row; padding is at the end of both.

    The spans of a prefix are those of the text of the batch.
    """
    if other := [name for name in source.inputs if name not in (*SOURCE_NAMES, SOUND)]:
        raise InputError(
            f"{other[0]!r} is no input that an encoder and a decoder are explained with. Pass input_ids and, for what "
            "was written so far, decoder_input_ids."
        )
    pad = getattr(model.tokenizer, "pad_token", None) or ""
    prefixes = pad_texts(prefixes, fill=model.padding, piece=pad, side="right")
    ids = source.inputs[source.main]
    written = torch.tensor([one.ids for one in prefixes], device=ids.device)
    real = ~torch.tensor([one.padding for one in prefixes])
    own = torch.ones(ids.shape, dtype=torch.bool) if source.token_mask is None else source.token_mask
    special = torch.zeros_like(own) if source.special_mask is None else source.special_mask
    mask = torch.cat([own, real], 1)
    length, whole = ids.size(1), ids.size(1) + written.size(1)
    words = source.words or tuple(tuple(map(str, row)) for row in ids.tolist())
    spans = source.spans or ((None,) * length,) * source.batch
    return replace(
        source,
        inputs={
            source.main: torch.cat([ids, written], 1),
            "attention_mask": mask.long().to(ids.device),
            **{name: sound for name, sound in source.inputs.items() if name == SOUND},
            PREFIX: torch.zeros(source.batch, 1, 1, 1, written.size(1), device=ids.device, dtype=torch.long),
        },
        token_mask=mask,
        special_mask=torch.cat([special, torch.tensor([one.special for one in prefixes])], 1),
        words=tuple((*before, *one.pieces) for before, one in zip(words, prefixes, strict=True)),
        spans=tuple((*before, *one.spans) for before, one in zip(spans, prefixes, strict=True)),
        streams=(Stream("source", 0, length), Stream("prefix", length, whole)),
    )
