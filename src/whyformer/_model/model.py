"""Model: a module, its tokenizer or image processor, and its readout. Created by open() in loading/."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from whyformer._model import input_spec, pictures, sound, text
from whyformer._model.arrays import as_input_list, read_arrays
from whyformer._model.embedding import find_end_token
from whyformer._model.encoded import EncodedBatch
from whyformer._model.image import ImageSource, read_image
from whyformer._model.input_like import ImageOrWords, InputLike, OneInput
from whyformer._model.kept_image import UNNAMED_IMAGE, ImageView, KeptImage, find_view
from whyformer._model.offload import find_device
from whyformer._model.prompt import Prompt
from whyformer._model.prompted import PromptedTransformer, add_virtual_tokens
from whyformer._model.token_masks import find_mask_name, read_token_mask
from whyformer._model.two_streams import SoundStreams, TwoStreams, add_prefix, append_prefixes
from whyformer._model.unwrap import unwrap
from whyformer._model.weight_files import WeightFiles, describe_weights
from whyformer._plain.small_table import make_card
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.versions import collect_versions
from whyformer._plain.words import list_some
from whyformer.errors import InputError, TargetError

LONGEST_QUOTE = 40  # characters of an unknown part of a text in a note

if TYPE_CHECKING:
    from transformers import BaseImageProcessor, PreTrainedTokenizerBase, ProcessorMixin, SequenceFeatureExtractor

InputKind = Literal["image", "text", "tensors"]


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """An open model. `module` is never modified."""

    module: nn.Module
    name: str
    kind: InputKind = "tensors"
    labels: tuple[str, ...] | None = None
    tokenizer: "PreTrainedTokenizerBase" = field(default=None, repr=False)  # None: it takes no texts
    processor: "BaseImageProcessor" = field(default=None, repr=False)  # None: it takes no images
    readout: str | int | None = None  # the token the answer is read at: "first", "last", "mean" or an index
    batch_axis: int = 0
    notes: tuple[str, ...] = ()
    files: WeightFiles | None = field(default=None, repr=False)  # that its weights were read from
    joint_processor: "ProcessorMixin | None" = field(default=None, repr=False)  # of images and a text as one input
    feature_extractor: "SequenceFeatureExtractor" = field(default=None, repr=False)  # None: it takes no sounds

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        kind = type(unwrap(self.module)).__name__
        return f"<Model {self.name}: {kind}, takes {self._takes}{classes}, {self._size} parameters>"

    def _repr_html_(self) -> str:
        """A small card for notebooks."""
        some = ", ".join(self.classes[:6]) + (", …" if len(self.classes) > 6 else "")
        facts = {
            "class": type(unwrap(self.module)).__name__,
            "takes": self._takes,
            "classes": f"{len(self.classes)}: {some}" if self.classes else "",
            "parameters": f"{self._size}, {str(self.dtype).removeprefix('torch.')} on {self.device}",
            "notes": " ".join(self.notes),
        }
        return make_card(f"Model {self.name}", facts.items())

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, without those that transformers makes up for a model that does not classify."""
        labels = self.labels or ()
        is_made_up = labels == tuple(f"LABEL_{i}" for i in range(len(labels)))
        return () if is_made_up and "Classif" not in type(unwrap(self.module)).__name__ else labels

    @property
    def takes_batches(self) -> bool:
        return self._input_spec.takes_batches

    @property
    def _takes(self) -> str:
        return "tensors" if self.kind == "tensors" else f"{self.kind}s"

    @property
    def _size(self) -> str:
        """The number of parameters, as people write it: 4.4 M."""
        count = float(sum(weight.numel() for weight in self.module.parameters()))
        power = next(power for power in (3, 2, 1, 0) if count >= 1000**power or not power)
        return f"{count / 1000**power:.3g}{('', ' k', ' M', ' B')[power]}"

    def readout_weights(self, mask: Tensor) -> Tensor:
        """How much of the answer is read at each token, [batch token], from the name or index of the readout."""
        positions = torch.arange(mask.size(1), device=mask.device).expand(mask.shape)
        if self.readout == "mean":
            return mask.double()
        if self.readout in ("first", "last"):
            return (positions == find_end_token(mask, str(self.readout))[:, None]).double()
        if isinstance(self.readout, int) and -mask.size(1) <= self.readout < mask.size(1):
            return (positions == self.readout % mask.size(1)).double()
        raise TargetError(
            f'readout must be "first", "last", "mean" or an index below {mask.size(1)}, got {self.readout!r}.'
        )

    def describe_versions(self) -> dict[str, str]:
        """What a result was computed with: the weights, the libraries, the dtype and the device."""
        return {"weights": describe_weights(self.files, self.module), **collect_versions(self.module)}

    @property
    def opened_by_path(self) -> Path | None:
        """The folder, if it was given as an absolute path, of which the name has only the last part."""
        source = None if self.files is None else self.files.source
        return source if source is not None and source.is_absolute() and self.name == source.name else None

    @property
    def device(self) -> torch.device:
        return find_device(self.module)

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    @property
    def max_length(self) -> int | None:
        """The largest number of tokens that the module accepts; None if it computes positions for any number."""
        return self._input_spec.max_length

    @property
    def trained_length(self) -> int | None:
        """The number of tokens that its positions were made for; texts are cut and split into windows by it."""
        return self._input_spec.trained_length

    @property
    def vocabulary(self) -> int | None:
        """The number of token ids that the module embeds; None if it does not say."""
        return self._input_spec.vocabulary

    @cached_property
    def predicts_tokens(self) -> bool:
        """Whether the module has a layer from states to tokens of its vocabulary, as language models have."""
        find = getattr(unwrap(self.module), "get_output_embeddings", None)
        try:
            return find is not None and find() is not None
        except (AttributeError, NotImplementedError, TypeError):
            return False

    @property
    def decoder_start(self) -> int | None:
        """The token that the decoder begins with, if an encoder reads the text and a decoder writes; else None."""
        module = self.module if isinstance(self.module, TwoStreams) else None
        return None if module is None or not (module.reads_text and module.writes) else module.start

    @property
    def takes_attention_mask(self) -> bool:
        """Whether forward() has an argument attention_mask."""
        return "attention_mask" in self._input_spec.names

    @property
    def counts_positions(self) -> bool:
        """Whether the module derives token positions from the padding in the ids."""
        return self._input_spec.counts_positions

    @cached_property
    def _input_spec(self) -> input_spec.InputSpec:
        return input_spec.read_input_spec(self.module)

    @neutral_torch()
    def encode(self, inputs: InputLike) -> EncodedBatch:
        """Turn a path, image, text, tensor, array, dictionary of inputs, or a list of these into a batch.

        A column of a table, such as a pandas Series, is a list.
        TextPair("a question", "an answer") is a pair that the model reads together, and so is {"question": ...,
        "context": ...} by any usual names. A plain tuple is one in a list, and for a model known to read pairs.
        {"text": "cat.jpg"} is a text, even where there is an image file of that name.
        A `Prompt` has its tokens already. A Whisper takes sounds: a WAV file, an array of samples, or a dictionary with
        "audio" and "decoder_input_ids".
        """
        if isinstance(inputs, EncodedBatch):
            return inputs
        encoded = self._encode(inputs)
        if isinstance(self.module, TwoStreams) and not encoded.streams:
            return add_prefix(self, self.module, encoded)
        return add_virtual_tokens(self.module, encoded) if isinstance(self.module, PromptedTransformer) else encoded

    def _encode(self, inputs: Any) -> EncodedBatch:
        if isinstance(self.module, SoundStreams) and (sounds := sound.read_sounds(inputs)) is not None:
            return self._from_sounds(sounds)
        if isinstance(inputs, list) and len(inputs) == 1 and pictures.is_picture_record(inputs[0]):
            inputs = inputs[0]
        if pictures.is_picture_record(inputs):
            return self._from_pictures(inputs)
        inputs = self._read_pairs(inputs)
        if isinstance(inputs, text.TextPair | Prompt):
            inputs = [inputs]
        elif not isinstance(inputs, str):
            inputs = as_input_list(inputs)
        if isinstance(inputs, list | tuple) and any(isinstance(item, Prompt) for item in inputs):
            return self._from_prompts(inputs)
        inputs = read_arrays(inputs, are_images=self.kind == "image")
        if isinstance(inputs, Mapping) and not text.is_text_record(inputs):
            return self._from_tensors(self._add_batch_axis(dict(inputs)))
        if isinstance(inputs, Tensor):
            return self._from_tensors(self._add_batch_axis({self._input_spec.choose_input_name(inputs): inputs}))
        items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not items:
            raise InputError("The list of inputs is empty.")
        if any(map(pictures.is_picture_record, items)):
            raise InputError("Images with a text are read one example at a time here; explain() takes a list of them.")
        are_tensors = [isinstance(item, Tensor | Mapping) and not text.is_text_record(item) for item in items]
        if all(are_tensors):
            return self._from_list(items)
        if any(are_tensors):
            raise InputError("A batch must contain only tensors, only images or only texts; this one mixes them.")
        if self.kind == "image":
            return self._from_images(items)
        if self.kind == "text":
            return self._from_texts(items)
        main = self._input_spec.main or "input_ids"
        needed = "processor" if main == "pixel_values" else "tokenizer"
        raise InputError(
            f"{self.name} was opened without a {needed}, so it needs tensors, got {type(items[0]).__name__}. "
            f'Pass open(module, {needed}=...), or a dictionary such as {{"{main}": ...}}.'
        )

    # --- images and texts ---------------------------------------------------------------------------------------------

    @cached_property
    def reads_pairs(self) -> bool:
        """Whether the model is known to read two texts together, by its head or by what its classes are called."""
        inner = unwrap(self.module)
        is_cross_encoder = (
            hasattr(getattr(inner, "config", None), "sentence_transformers") and len(self.labels or ()) == 1
        )
        has_head = type(inner).__name__.endswith(text.PAIR_HEADS)
        return has_head or is_cross_encoder or any(map(text.is_pair_label, self.labels or ()))

    def _read_pairs(self, inputs: Any) -> Any:
        """Pairs of texts as what they are, if they were given as a tuple or by columns."""
        if type(inputs) is tuple and text.is_text_pair(inputs) and self.reads_pairs:
            return text.TextPair(*inputs)
        return text.split_text_columns(inputs) or inputs

    def _note_single(self, items: Sequence[OneInput]) -> tuple[str, ...]:
        """A note if a model that reads pairs gets single texts."""
        if not self.reads_pairs or all(map(text.is_text_pair, items)):
            return ()
        return (
            f"{self.name} reads two texts together (a question and its context, a premise and a hypothesis) and got "
            "one. Pass TextPair(first, second) to explain the answer to both.",
        )

    def _from_sounds(self, sounds: Sequence[sound.Sound]) -> EncodedBatch:
        """Sounds, and what was written about them: given with each, or what the model writes before its last token."""
        features = sound.extract_features(self.feature_extractor, sounds, self.name).to(self.device, self.dtype)
        assert isinstance(self.module, SoundStreams)
        written = [one.written for one in sounds]
        rows = self.module.write(features) if None in written else written
        ids = _pad_rows([row.to(self.device) for row in rows if row is not None], self.padding)
        real = _pad_rows([torch.ones(len(row), dtype=torch.long) for row in rows if row is not None], 0)
        prefix = {"decoder_input_ids": ids, "decoder_attention_mask": real.to(self.device)}
        encoded = self._from_tensors({"input_features": features, **prefix})
        return replace(encoded, names=tuple(one.name for one in sounds))

    def _from_images(self, items: Sequence[ImageSource]) -> EncodedBatch:
        read = [read_image(item) for item in items]
        images = [image for image, _ in read]
        notes = (*self.notes, *(note for _, note in read if note))
        processed = self.process_images(images)
        pixels = processed.to(self.device, self.dtype)
        main = self._input_spec.choose_input_name(pixels)  # a custom module may use another name
        self._input_spec.check({main: pixels})
        unnamed = [UNNAMED_IMAGE] if len(items) == 1 else [f"{UNNAMED_IMAGE} {n}" for n in range(len(items))]
        names = tuple(
            Path(item).name if isinstance(item, str | os.PathLike) else name
            for item, name in zip(items, unnamed, strict=True)
        )
        kept, uncast = tuple(map(self.keep_image, images)), _keep_if_rounded(processed, self.dtype)
        return EncodedBatch({main: pixels}, main, len(images), names, notes=notes, images=kept, uncast=uncast)

    def keep_image(self, image: Image.Image) -> KeptImage:
        """The image to draw a map on, with the part of it that the model sees."""
        return KeptImage(image, partial(self._find_view, image.size))

    def process_images(self, images: list[Image.Image]) -> Tensor:
        """[batch channel height width] on the CPU, as the image processor makes it."""
        try:
            return self.processor(images=images, return_tensors="pt")["pixel_values"]
        except Exception as error:
            if not type(self.processor).__module__.startswith("transformers."):
                raise  # the user's own processor
            raise InputError(
                f"The image processor of {self.name} fails on these images: {str(error)[:200]}. Its "
                "preprocessor_config.json may be damaged or belong to another model.",
                code="E_MODEL_CONFIG",
            ) from None

    def _find_view(self, size: tuple[int, int]) -> ImageView | None:
        """Which part of images of this size the processor passes on."""
        if size not in self._views:
            self._views[size] = find_view(lambda image: self.process_images([image]), *size)
        return self._views[size]

    @cached_property
    def _views(self) -> dict[tuple[int, int], ImageView | None]:
        return {}

    def _from_pictures(self, record: Mapping[str, ImageOrWords]) -> EncodedBatch:
        """Images and a text as one input."""
        if self.joint_processor is None:
            raise InputError(
                f"{self.name} was opened without a processor for images with texts. Open it with processor=, or pass "
                "what its processor makes of them."
            )
        images, notes, words = pictures.read_record(record)
        inputs = pictures.process_record(self.joint_processor, images, words, self.name)
        names = {name for name in inputs if self._input_spec.takes_any or name in self._input_spec.names}
        encoded = self._from_tensors({name: given for name, given in inputs.items() if name in names})
        return self._keep_pictures(replace(encoded, names=(words,), notes=(*encoded.notes, *notes)), images)

    def _keep_pictures(self, encoded: EncodedBatch, images: list[Image.Image]) -> EncodedBatch:
        """The batch with its images, and where their pixels lie."""
        pixels = encoded.inputs[pictures.PIXELS]
        if pixels.dim() == 4 and len(pixels) == len(images):  # the pixels of an image as they are: it may be cropped
            return replace(encoded, images=tuple(map(self.keep_image, images)))
        find = partial(pictures.place_by_processor, self.process_images, [image.size for image in images])
        kept = tuple(map(pictures.keep_whole, images))
        assert encoded.pictures is not None
        return replace(encoded, images=kept, pictures=replace(encoded.pictures, count=len(images), find_places=find))

    def _from_texts(self, items: Sequence[OneInput]) -> EncodedBatch:
        names = text.name_texts(len(items))
        items = [text.read_text_item(item, self.name) for item in items]
        texts = [self.tokenize(item, name) for item, name in zip(items, names, strict=True)]
        return self.encode_tokens(texts, self.notes + self._note_single(items) + self.note_unknown(texts, names))

    def _from_prompts(self, items: Sequence[Prompt]) -> EncodedBatch:
        """A batch of prompts, with the places of their answers."""
        if not all(isinstance(item, Prompt) for item in items):
            raise InputError("A batch must contain only prompts or only other inputs; this one mixes them.")
        for item in items:
            self.check_token_ids(item.ids, source=item.source_length)
        if isinstance(self.module, TwoStreams):
            # A batch of prompts for a model with an encoder, which reads the source, and a decoder.
            sources, prefixes = ([take_tokens(item, part) for item in items] for part in ("source", "prefix"))
            encoded = append_prefixes(self, self.encode_tokens(sources), prefixes)
        elif self.tokenizer is None:
            encoded = self._from_list([torch.tensor(item.ids) for item in items])
        else:
            encoded = self.encode_tokens([text.TokenizedText.from_pieces(item.ids, item.pieces) for item in items])
        notes = dict.fromkeys((*self.notes, *encoded.notes, *(note for item in items for note in item.notes)))
        answers = tuple((item.answer.start, item.answer.stop) if item.answer else None for item in items)
        regions = tuple(item.named_tokens for item in items)
        return replace(encoded, answers=answers, regions=regions, notes=tuple(notes))

    def check_token_ids(self, ids: Sequence[int], *, source: int = 0) -> None:
        """Refuse more tokens than the module takes, and ids that it does not have.

        source: how many of them an encoder reads; a decoder reads the others.
        """
        for part in (ids[:source], ids[source:]):
            if part:
                self._input_spec.check_length(len(part), "the prompt")
                self._input_spec.check_ids(torch.tensor(part), of_tokenizer=False)

    def encode_tokens(self, texts: Sequence[text.TokenizedText], notes: tuple[str, ...] = ()) -> EncodedBatch:
        """A batch of tokenized texts, padded to one length."""
        spec = self._input_spec
        spec.check_batch(len(texts))
        for one in texts:
            spec.check_ids(torch.tensor(one.ids), of_tokenizer=True)
        texts = text.pad_texts(texts, fill=self.padding, piece=self.tokenizer.pad_token or "", side=self._padding_side)
        real, device = ~torch.tensor([one.padding for one in texts]), self.device
        batch = {name: torch.tensor([one.inputs[name] for one in texts], device=device) for name in texts[0].inputs}
        main = spec.choose_input_name(batch["input_ids"])  # a custom module may use another name
        inputs = {main: batch.pop("input_ids")} | {name: batch[name] for name in batch if name in spec.names}
        if not bool(real.all()) and "attention_mask" not in inputs:
            raise InputError(
                f"The texts have different lengths, but {spec.name} has no attention_mask. Pass one text to each call; "
                "judge() and bulk() do so by themselves."
            )
        return EncodedBatch(
            inputs | self._make_positions(real),
            main,
            len(texts),
            names=tuple(one.name for one in texts),
            token_mask=real,
            special_mask=torch.tensor([one.special for one in texts]),
            texts=tuple(one.text for one in texts),
            words=tuple(one.pieces for one in texts),
            spans=tuple(one.spans for one in texts),
            seconds=tuple(one.second for one in texts),
            notes=notes + spec.note_length(real.size(1)),
        )

    def tokenize(self, item: OneInput, name: str = "the text") -> text.TokenizedText:
        """One text or pair of texts as tokens that the module takes; error messages call it `name`."""
        one = text.tokenize_text(self.tokenizer, item, name, keeps_mask=self.predicts_tokens)
        self._input_spec.check_length(len(one), name)
        self._input_spec.check_ids(torch.tensor(one.ids), of_tokenizer=True)
        return one

    def tokenize_windows(
        self, inputs: InputLike, windows: int
    ) -> list[tuple[text.TokenizedText, list[text.TextWindow]]]:
        """Each text with the windows that it is split into; a text that is short enough is one window."""
        found = read_arrays(as_input_list(self._read_pairs(inputs)), are_images=False)
        items = [found] if isinstance(found, text.TextPair) or not isinstance(found, list | tuple) else list(found)
        if self.kind != "text":
            raise InputError(
                f"windows= splits texts, but {self.name} was opened without a tokenizer. Leave it out.", code="E_OPTION"
            )
        if isinstance(self.module, TwoStreams):
            reason = f"windows= does not work for {self.name}: its decoder reads the whole source."
            raise InputError(f"{reason} Shorten the text.", code="E_OPTION")
        if not items:
            raise InputError("The list of inputs is empty.")
        windowed = []
        for item, name in zip(items, text.name_texts(len(items)), strict=True):
            one = text.tokenize_text(self.tokenizer, text.read_text_item(item, self.name), name)
            windowed.append((one, text.split_into_windows(one, self.trained_length, windows, name)))
        return windowed

    @property
    def takes_batches_of_texts(self) -> bool:
        """Whether texts of different lengths can share a batch."""
        try:
            self._input_spec.check_batch(2)
        except InputError:
            return False
        return self.takes_attention_mask

    @property
    def _padding_side(self) -> str:
        """The side the tokenizer pads on; right if left padding would shift positions that cannot be passed."""
        takes_positions = self._input_spec.is_hugging_face or "position_ids" in self._input_spec.names
        return self.tokenizer.padding_side if takes_positions else "right"

    def _make_positions(self, real: Tensor) -> dict[str, Tensor]:
        """With padding on the left, position_ids that start at the first real token."""
        if bool(real[:, 0].all()) or "position_ids" not in self._input_spec.names or self._input_spec.counts_positions:
            return {}
        return {"position_ids": (real.long().cumsum(-1) - 1).clamp(min=0).to(self.device)}

    def note_unknown(self, texts: Sequence[text.TokenizedText], names: Sequence[str]) -> tuple[str, ...]:
        """A note for every text that contains unknown tokens."""
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is None or unknown in [getattr(self.tokenizer, f"{end}_token_id", None) for end in ("eos", "bos")]:
            return ()
        found = [[i for i, own in enumerate(one.ids) if own == unknown and not one.special[i]] for one in texts]
        return tuple(
            f"The model cannot read {len(at)} of {len(one) - sum(one.special)} tokens of {name}: "
            f"{list_some(quote_pieces(one, at))}."
            for at, one, name in zip(found, texts, names, strict=True)
            if at
        )

    @property
    def padding(self) -> int:
        """The token id for padding: that of the model, since some models look for it, else that of the tokenizer."""
        known = [getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "eos")]
        wanted = next((i for i in (self._input_spec.padding, *known) if i is not None), 0)
        rows = self._input_spec.vocabulary
        return wanted if rows is None or wanted < rows else 0

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _add_batch_axis(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make a single example without batch axis a batch of one."""
        for name, value in inputs.items():
            input_spec.refuse_unusable_tensor(name, value)
        if self.reads_pictures(inputs) or input_spec.holds_cut_patches(inputs):
            return inputs
        main = _find_main_input(inputs)
        tensor = inputs.get(main)
        if not isinstance(tensor, Tensor) or tensor.dim() != _count_example_axes(main, tensor):
            return inputs
        return {name: value[None] if isinstance(value, Tensor) else value for name, value in inputs.items()}

    def _from_list(self, items: Sequence[Tensor | Mapping[str, Tensor]]) -> EncodedBatch:
        """A batch from a list of tensors or dictionaries, one per example; sequences are padded on the right."""
        rows = [
            dict(item) if isinstance(item, Mapping) else {self._input_spec.choose_input_name(item): item}
            for item in items
        ]
        if len({tuple(sorted(row)) for row in rows}) > 1:
            raise InputError(f"All examples of a batch must have the same inputs, got {[sorted(row) for row in rows]}.")
        for row in rows:
            self._input_spec.check(self._add_batch_axis(row))
        rows = [{name: _drop_batch_axis(name, value) for name, value in row.items()} for row in rows]
        joined = {
            name: _pad_rows([row[name] for row in rows], self.padding * (name == "input_ids")) for name in rows[0]
        }
        is_ragged = any(len({tuple(row[name].shape) for row in rows}) > 1 for name in rows[0])
        if is_ragged and "attention_mask" not in joined:
            if "attention_mask" not in self._input_spec.names:
                raise InputError(
                    "The examples have different lengths, but the model has no attention_mask. "
                    "Pad them, or pass one to each call; judge() and bulk() do so by themselves."
                )
            lengths = [row[_find_main_input(row)].size(0) for row in rows]
            joined["attention_mask"] = _pad_rows([torch.ones(n, dtype=torch.long) for n in lengths], 0)
        return self._from_tensors(joined)

    def _from_tensors(self, inputs: dict[str, Tensor]) -> EncodedBatch:
        shown = pictures.describe_pictures(self.module, inputs)
        self._input_spec.check(inputs, is_joint=shown is not None)
        main = _find_main_input(inputs) if shown is None else "input_ids"
        uncast = _keep_if_rounded(inputs[main], self.dtype)
        is_byte_image = lambda tensor: tensor.dim() == 4 and tensor.dtype == torch.uint8  # noqa: E731
        inputs = {
            name: tensor.to(self.device, self.dtype if tensor.is_floating_point() or is_byte_image(tensor) else None)
            for name, tensor in inputs.items()
        }
        tensor = inputs[main]
        input_spec.refuse_other_axes(main, tensor)
        axis = self.batch_axis if tensor.dim() == 3 and tensor.is_floating_point() else 0
        mask = _find_token_mask(inputs, tensor, axis)
        words = special = None
        if tensor.dim() == 2 and not tensor.is_floating_point():
            words, special = self._name_ids(tensor.cpu())
            special = special if mask is None else special & mask
        is_image = tensor.dim() == 4 and tensor.is_floating_point()
        range_note = input_spec.check_pixel_range(tensor, self.processor, self.name) if is_image else ""
        notes = tuple(filter(None, (*self.notes, range_note, input_spec.note_missing(tensor))))
        if words is not None:
            notes += self._input_spec.note_length(tensor.size(1))
        names = tuple(f"example {n}" for n in range(tensor.size(axis)))
        self._input_spec.check_batch(len(names))
        return EncodedBatch(
            inputs, main, len(names), names, axis, token_mask=mask, special_mask=special, words=words,
            notes=notes, uncast=uncast, pictures=shown,
        )  # fmt: skip

    def reads_pictures(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether these are tensors of images or sounds between words."""
        return pictures.find_medium(self.module, inputs) is not None

    def _name_ids(self, ids: Tensor) -> tuple[tuple[tuple[str, ...], ...], Tensor]:
        """The name of each token id, and which are special."""
        special = self._input_spec.special
        if self.tokenizer is not None:
            special = frozenset(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        words = tuple(self.name_ids(row) for row in ids.tolist())
        return words, torch.isin(ids.long(), torch.tensor(sorted(special), dtype=torch.long))

    def name_ids(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The pieces of the tokenizer, or the ids as text where it has none."""
        pieces = self.tokenizer.convert_ids_to_tokens(list(ids)) if self.tokenizer is not None else [None] * len(ids)
        return tuple(str(i) if piece is None else piece for i, piece in zip(ids, pieces, strict=True))


def take_tokens(prompt: Prompt, part: str) -> text.TokenizedText:
    """What the encoder ("source") or the decoder ("prefix") reads of a prompt."""
    own = slice(0, prompt.source_length) if part == "source" else slice(prompt.source_length, None)
    return text.TokenizedText.from_pieces(prompt.ids[own], prompt.take(own))


class PipelineLike(Protocol):
    """A pipeline of transformers, which holds a model."""

    model: nn.Module


ModelLike: TypeAlias = Model | str | os.PathLike[str] | nn.Module | PipelineLike


def _find_main_input(inputs: Mapping[str, Tensor]) -> str:
    """The input that is explained: a well-known name, else the first with a channel axis, else the first."""
    known = [name for name in input_spec.EXPLAINED_INPUTS if name in inputs]
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    floating = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() >= 3]
    return (known or floating or list(inputs) or [""])[0]


def _count_example_axes(name: str, tensor: Tensor) -> int | None:
    """The number of axes of one example; None if unknown."""
    if name in input_spec.INPUT_AXES:
        return len(input_spec.INPUT_AXES[name].split()) - 1
    return None if tensor.is_floating_point() else 1


def _drop_batch_axis(name: str, tensor: Tensor) -> Tensor:
    """One example of a list, without its batch axis."""
    rank = _count_example_axes(name, tensor)
    has_batch = tensor.dim() == rank + 1 if rank is not None else tensor.dim() >= 2 and tensor.size(0) == 1
    if has_batch and tensor.size(0) != 1:
        raise InputError(
            f"{name} of an example in the list has the shape {list(tensor.shape)}, which is already a batch. "
            "Pass a list of single examples, or one tensor with the whole batch."
        )
    return tensor[0] if has_batch else tensor


def _pad_rows(rows: list[Tensor], fill: float) -> Tensor:
    if all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        raise InputError(f"The examples cannot be combined into one batch: shapes {[list(row.shape) for row in rows]}.")
    return pad_sequence(rows, batch_first=True, padding_value=fill)


def _keep_if_rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The tensor if a model of this dtype takes it with less than float32 precision; otherwise nothing is lost."""
    return tensor if tensor.is_floating_point() and torch.finfo(dtype).bits < 32 else None


def _find_token_mask(inputs: Mapping[str, Tensor], main: Tensor, axis: int) -> Tensor | None:
    """Which tokens are not padding, from the mask of the tokens."""
    if main.dim() == 4:
        return None
    if (name := find_mask_name(inputs, main)) is not None:
        mask = read_token_mask(name, inputs[name])
        if main.dim() == 2 and not main.is_floating_point() and mask.size(1) != main.size(1):
            raise InputError(
                f"{name} has {mask.size(1)} numbers for each example, but there are {main.size(1)} tokens, so which of "
                "them it hides is not known. Pass one for each token."
            )
        return mask
    shape = (main.size(axis), main.size(1 - axis)) if main.dim() >= 2 else (main.size(0), 1)
    return torch.ones(shape, dtype=torch.bool)


def quote_pieces(one: text.TokenizedText, positions: Sequence[int]) -> list[str]:
    """The parts of a text at these tokens, each once, in quotes."""
    parts = [one.pieces[i] if one.spans[i] is None else one.text[slice(*(one.spans[i] or ()))] for i in positions]
    return list(dict.fromkeys(repr(part.strip()[:LONGEST_QUOTE]) for part in parts))
