r"""The probe: runs the model on variants of the explained examples.

A method that perturbs the input, integrates over it or changes the attention needs `probe`. It describes the variants,
one row each, and gets the model's answer to every row. The target stays that of the original example, whatever the
model predicts for a variant. The model runs on chunks of rows; `spent` counts the rows that went forward and backward.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine import perturb
from whyformer._engine.backward import compute_gradients
from whyformer._engine.blocks import find_block_calls, find_blocks
from whyformer._engine.forward import Run, run_forward, run_plain_returned
from whyformer._engine.intervene import Intervention
from whyformer._engine.layout import (
    Layout,
    axis_order_of,
    from_canonical_axes,
    refuse_unknown_frames,
    split_entries,
    to_canonical_axes,
)
from whyformer._engine.reading import Answers, ClassReading, Reading, detach_answers, take_answers
from whyformer._engine.returned import find_output
from whyformer._engine.shadow import make_shadow
from whyformer._engine.target import REPRESENTATION, Target
from whyformer._engine.tracing.attention import find_layer_sites
from whyformer._engine.tracing.provenance import trace_of
from whyformer._engine.weight_versions import read_weight_versions, refuse_changed_weights
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._plain.deprecation import warn_renamed
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, MethodError, NonFinite, UnsupportedModel

CHUNK_ROWS = {"cpu": 32, "cuda": 256}  # rows per forward
NO_INPUT = "The explained input was not found: the model does not embed token ids."


class Probe:
    """Runs the model on variants of the examples of one capture."""

    def __init__(
        self,
        model: Model,
        encoded: EncodedBatch,
        layout: Layout,
        targets: tuple[Target, ...],
        reading: Reading | None = None,
    ) -> None:
        self.model, self.encoded, self.layout = model, encoded, layout
        self.reading = reading or ClassReading(model.module, targets)
        self.batch = encoded.batch
        self.targets, self.tokens = targets, layout.tokens
        self.spent: Counter[str] = Counter()
        self.weight_versions = read_weight_versions(model.module)

    # --- what can be removed ------------------------------------------------------------------------------------------

    @property
    def is_image(self) -> bool:
        return self.encoded.inputs[self.encoded.main].dim() == 4

    @property
    def is_signal(self) -> bool:
        """The input is a waveform, a spectrogram or a time series, and its units are the frames that the model cuts."""
        return self.layout.owners is not None

    @property
    def is_vectors(self) -> bool:
        """The input is a sequence of vectors, [batch token channel]."""
        main = self.encoded.inputs[self.encoded.main]
        return main.is_floating_point() and main.dim() == 3 and not self.encoded.batch_axis and not self.is_signal

    @property
    def grid(self) -> Grid | None:
        """The grid of patches of an image; None for texts, and for images whose patches are not known."""
        first = self.tokens[0]
        return first if isinstance(first, Grid) else None

    @property
    def units(self) -> int:
        """The number of patches of an image, of tokens of a text, or of frames of a signal."""
        return len(self.tokens[0])

    @cached_property
    def places(self) -> Tensor:
        """[unit]: the position of each patch or token in the model's sequence."""
        places = self.layout.patches or self.layout.places
        if places is None and self.units != self.layout.length:
            raise UnsupportedModel(
                f"The input has {self.units} tokens, the attention covers {self.layout.length}, and which is which is "
                "not known. Methods that change attention do not work."
            )
        return torch.arange(self.units) if places is None else torch.tensor(places)

    @cached_property
    def real(self) -> Tensor:
        """[batch unit]: can be removed, because it is neither padding nor a special token."""
        if self.grid is not None:
            return torch.ones(self.batch, self.units, dtype=torch.bool)
        rows = [tokens for tokens in self.tokens if isinstance(tokens, Pieces)]
        return ~(torch.tensor([row.padding for row in rows]) | torch.tensor([row.special for row in rows]))

    @cached_property
    def fingerprints(self) -> tuple[int, ...]:
        """One integer per example, which depends only on that example."""
        return self.encoded.fingerprints()

    @property
    def fill(self) -> str:
        """The default fill for what is removed."""
        return "mean" if self.is_signal else perturb.choose_default_fill(self.model, self.encoded)

    @cached_property
    def before(self) -> Answers:
        """The answers to the original examples."""
        return self.run_batch(self.encoded, torch.arange(self.batch))

    # --- running ------------------------------------------------------------------------------------------------------

    @neutral_torch()
    def keep_only(self, keep: Tensor, of: Tensor, fill: str | None = None, *, seed: int = 0) -> Answers:
        """The answers when only some units are kept and the others are removed. Special tokens and padding always stay.

        keep: [n unit], or [n height width] for the pixels of an image; True where something is kept.
        of: [n], the example that each row is a variant of.
        fill: what takes the place of removed units (see perturb.py), or "drop": no token attends to them.
        """
        fill = self.check_fill(fill)
        keep, of = keep.detach().bool().cpu(), of.detach().long().cpu()
        if keep.size(0) != of.size(0) or (keep.dim() == 2 and keep.size(1) != self.units):
            raise MethodError(
                f"keep has the shape {list(keep.shape)}, expected {[len(of), self.units]} or a mask of pixels."
            )
        if fill == "drop":
            if keep.dim() != 2:
                raise MethodError(
                    "fill='drop' removes whole patches, not pixels or superpixels. Use another fill.", code="E_OPTION"
                )
            return self.intervene(lambda rows: self.drop_tokens(keep[rows], of[rows]), of)[0]
        if self.is_image:
            return self.run_variants(of, lambda rows: self.erase_pixels(keep[rows], of[rows], fill, seed))
        keep = keep | ~self.real[of]
        if fill in perturb.SIGNAL_FILLS:
            return self.run_variants(of, lambda rows: self.erase_frames(keep[rows], of[rows], fill))
        refuse_unknown_frames(self.encoded, self.layout)
        if fill == "delete":
            return self.run_shortened(keep, of)
        if fill == "pad":
            return self.run_masked(keep, of)
        return self.run_variants(
            of, lambda rows: perturb.replace_tokens(self.model, self.encoded, keep[rows], of[rows], fill)
        )

    @neutral_torch()
    def replace_inputs(self, tensors: Tensor | Callable[[Tensor], Tensor], of: Tensor) -> Answers:
        """The answers to other pixels [n channel height width] or token ids [n token].

        tensors: all of them, or a function that returns those of the given rows, to save memory.
        of: [n], the example that each row is a variant of.
        """

        def make_variant(rows: Tensor) -> EncodedBatch:
            chosen = perturb.pick_examples(self.encoded, of[rows])
            own = chosen.inputs[chosen.main]
            given = (tensors[rows.to(tensors.device)] if isinstance(tensors, Tensor) else tensors(rows)).to(own)
            return replace(chosen, inputs={**chosen.inputs, chosen.main: given})

        return self.run_variants(of, make_variant)

    @neutral_torch()
    def run_at_leaf(self, leaf: Tensor, of: Tensor, *, gradient: bool = True) -> tuple[Answers, Tensor | None]:
        """The answers when the explained input is replaced by `leaf`, and the gradient of the score there.

        leaf: [n token channel], the sum of embeddings, or [n height width channel], pixels, like the site `input`.
        """
        answers, gradients = [], []
        for rows in self.chunks(len(of), "gradients" if gradient else "forwards"):
            with self._run_rows_at_leaf(leaf, of, rows) as (run, answer):
                if gradient:
                    if run.mode.leaf is None:
                        raise UnsupportedModel(NO_INPUT)
                    (back,) = compute_gradients(answer.score, [run.mode.leaf])
                    gradients.append(split_entries(to_canonical_axes(back, trace_of(run.mode.leaf)), self.layout))
                    self.spent["backward"] += len(rows)
                answers.append(detach_answers(answer))
        return join_answers(answers), torch.cat(gradients) if gradient else None

    @neutral_torch()
    def compute_last_attention_grad(self, leaf: Tensor, of: Tensor) -> Tensor:
        """[n head query key]: the gradient of the score by the last attention, when the input is `leaf`."""
        return self._gather_last_attention_grad(of, lambda rows: self._run_rows_at_leaf(leaf, of, rows))

    @neutral_torch()
    def compute_last_attention_grad_scaled(self, scale: float, of: Tensor) -> Tensor:
        """The same when the state that enters the first block is multiplied by `scale`."""
        return self._gather_last_attention_grad(of, lambda rows: self._run_rows_scaled(scale, of, rows))

    def _gather_last_attention_grad(
        self, of: Tensor, run_rows: Callable[[Tensor], AbstractContextManager[tuple[Run, Answers]]]
    ) -> Tensor:
        gradients = []
        for rows in self.chunks(len(of), "gradients"):
            with run_rows(rows) as (run, answer):
                site = find_layer_sites(run.mode.sites)[-1]
                (back,) = compute_gradients(answer.score, [site.output])
                gradients.append(site.split_heads(back) @ site.value.mT)
            self.spent["backward"] += len(rows)
        return torch.cat(gradients)

    @contextmanager
    def _run_rows_scaled(self, scale: float, of: Tensor, rows: Tensor) -> Iterator[tuple[Run, Answers]]:
        """One forward with a graph, in which the state that enters the first block is multiplied by `scale`."""
        chosen = perturb.pick_examples(self.encoded, of[rows])
        prepare = partial(scale_module_input, path=self._first_block, scale=scale)
        with run_forward(self.model, chosen, asks_gradient=True, prepare=prepare) as run:
            yield run, self.read_answers(chosen, run.returned, of[rows])
        self.spent["forward"] += len(rows)

    @cached_property
    def _first_block(self) -> str:
        """The path of the module that is the first block."""
        with run_forward(self.model, self.encoded, asks_gradient=False) as run:
            self.spent["forward"] += self.batch
            return find_block_calls(run.mode)[0].path

    @contextmanager
    def _run_rows_at_leaf(self, leaf: Tensor, of: Tensor, rows: Tensor) -> Iterator[tuple[Run, Answers]]:
        """One forward with a graph, of some rows of `leaf` in place of the explained input."""
        chosen = perturb.pick_examples(self.encoded, of[rows])
        given = leaf[rows.to(leaf.device)].to(self.model.device, self.model.dtype)
        start = from_canonical_axes(given, self._axis_order)
        if self.is_signal:
            start = given.reshape(len(rows), *self.encoded.inputs[self.encoded.main].shape[1:])
        if self.encoded.inputs[self.encoded.main].is_floating_point():
            chosen = replace(chosen, inputs={**chosen.inputs, chosen.main: start})
        with run_forward(self.model, chosen, asks_gradient=True, starting_at=start) as run:
            yield run, self.read_answers(chosen, run.returned, of[rows])
        self.spent["forward"] += len(rows)

    @neutral_torch()
    def intervene(
        self,
        make: Callable[[Tensor], Intervention],
        of: Tensor,
        *,
        look: Callable[[Run], Any] | None = None,
    ) -> tuple[Answers, list[Any]]:
        """The answers while the run is changed by an intervention, and what `look` returned for each chunk.

        make: returns the intervention for the given rows.
        look: reads something from a run. It is required for a model without a head, whose answers are empty.
        """
        answers, seen = [], []
        for rows in self.chunks(len(of), "interventions"):
            chosen = perturb.pick_examples(self.encoded, of[rows])
            with run_forward(self.model, chosen, asks_gradient=False, intervention=make(rows)) as run:
                if self.targets[0].label != REPRESENTATION or look is None:
                    answers.append(detach_answers(self.read_answers(chosen, run.returned, of[rows])))
                if look is not None:
                    seen.append(look(run))
            self.spent["forward"] += len(rows)
        nothing = torch.empty(0)
        return join_answers(answers) if answers or not seen else Answers(nothing, nothing, nothing), seen

    # --- the explained input as numbers -------------------------------------------------------------------------------

    @property
    def leaf(self) -> Tensor:
        """The explained input: [batch token channel], the sum of embeddings, or [batch height width channel]."""
        return self._leaf_parts[0]

    @property
    def words(self) -> Tensor:
        """The part of the leaf that comes from the token ids; for an image, all of it."""
        return self._leaf_parts[1]

    @property
    def _axis_order(self) -> str:
        return self._leaf_parts[2]

    @cached_property
    def _leaf_parts(self) -> tuple[Tensor, Tensor, str]:
        return self.find_leaf_parts(self.encoded)

    @neutral_torch()
    def find_leaf_parts(self, encoded: EncodedBatch) -> tuple[Tensor, Tensor, str]:
        """The explained input, the part of it that comes from token ids, and the model's order of axes."""
        refuse_unknown_frames(encoded, self.layout)
        with run_forward(self.model, encoded, asks_gradient=True) as run:
            self.spent["forward"] += encoded.batch
            leaf = run.mode.leaf
            if leaf is None:
                raise UnsupportedModel(NO_INPUT)
            trace = trace_of(leaf)
            words = leaf.detach() if run.mode.words is None else run.mode.words
            whole, part = (split_entries(to_canonical_axes(t, trace), self.layout) for t in (leaf.detach(), words))
            return whole, part, axis_order_of(leaf, trace)

    @neutral_torch()
    def baseline(self, kind: str, *, seed: int = 0) -> Tensor:
        """An input without information, in the shape of `leaf`.

        Images: "zero", "black", "mean", "blur", "noise". Signals: "zero", "mean". Texts: "zero" (no word embedding,
        only the position), or every token that is neither special nor padding replaced by "mask", "unknown" or "pad".
        """
        everything = torch.arange(self.batch)
        if self.is_signal:
            varied = self.erase_frames(~self.real, everything, self.check_fill(kind))
            return split_entries(varied.inputs[varied.main], self.layout)
        if self.is_image:
            gone = torch.zeros(self.batch, *self.encoded.inputs[self.encoded.main].shape[-2:], dtype=torch.bool)
            varied = self.erase_pixels(gone, everything, self.check_fill(kind), seed)
            return varied.inputs[varied.main].permute(0, 2, 3, 1)
        if not isinstance(kind, str):
            raise MethodError(f"baseline must be a name, got {kind!r}.", code="E_OPTION")
        if kind == "zero":
            return torch.where(self._is_real_at_leaf, self.leaf - self.words, self.leaf)
        if kind not in ("mask", "unknown", "pad"):
            raise MethodError(
                f"baseline={kind!r} is not a choice for a text. Available: 'zero', 'mask', 'unknown', 'pad'.",
                code="E_OPTION",
            )
        chosen = self.encoded
        ids = torch.where(
            self.real.to(self.model.device), perturb.find_fill_token(self.model, kind), chosen.inputs[chosen.main]
        )
        words = self.find_leaf_parts(replace(chosen, inputs={**chosen.inputs, chosen.main: ids}))[1]
        # Not the leaf of those ids: models that number positions by counting tokens skip padding.
        return torch.where(self._is_real_at_leaf, self.leaf - self.words + words, self.leaf)

    @property
    def _is_real_at_leaf(self) -> Tensor:
        """[batch token 1]: `real`, for every token that is embedded, also for those that the model adds."""
        real = self.real
        if self.leaf.size(1) != self.units:
            real = torch.zeros(self.batch, self.leaf.size(1), dtype=torch.bool)
            real[:, self.places] = self.real
        return real.to(self.leaf.device)[..., None]

    # --- in chunks ----------------------------------------------------------------------------------------------------

    def chunks(self, rows: int, what: str) -> Iterator[Tensor]:
        """Row numbers, chunk by chunk, with a progress bar."""
        size = CHUNK_ROWS.get(self.model.device.type, 32)
        unchanged = refuse_changed_weights(self.model.module, self.weight_versions)
        with unchanged, show_progress(rows, what) as progress:
            for rows_now in torch.arange(rows).split(size):
                yield rows_now
                progress.advance(len(rows_now))

    def run_variants(self, of: Tensor, make_variant: Callable[[Tensor], EncodedBatch]) -> Answers:
        chunks = self.chunks(len(of), "forwards")
        return join_answers([self.run_batch(make_variant(rows), of[rows]) for rows in chunks])

    def run_shortened(self, keep: Tensor, of: Tensor) -> Answers:
        """The answers with tokens deleted."""
        mask = self.encoded.token_mask
        if mask is not None and mask.size(1) != keep.size(1):  # a video, say: a token is not one step of the input
            raise UnsupportedModel(
                f"The input has {mask.size(1)} steps and the attention {keep.size(1)} tokens, and which belong "
                "together is not known. Methods that change the input do not support this yet."
            )
        lengths = (keep if mask is None else keep & mask[of]).sum(-1)
        way_out = "Use fill='mean'." if self.is_vectors else "Use fill='pad' or 'drop'."
        if not bool(lengths.all()):
            raise InputError(f"Deleting all tokens leaves an empty input. {way_out}")
        takes_mask = "attention_mask" in self.encoded.inputs or self.model.takes_attention_mask
        try:
            return self.run_by_length(keep, of, "delete", lengths, mixes=takes_mask)
        except InputError as error:
            raise InputError(f"The model cannot run after tokens were deleted. {way_out} ({error})") from error

    def run_masked(self, keep: Tensor, of: Tensor) -> Answers:
        """The answers with tokens masked, in texts without padding, to which the masked tokens of DeBERTa attend."""
        mask = self.encoded.token_mask
        lengths = torch.full((len(of),), self.units) if mask is None else mask.sum(-1)[of]
        try:
            return self.run_by_length(keep, of, "pad", lengths, mixes=False)
        except NonFinite:
            left = keep if mask is None else keep & mask[of]
            if bool(left.any(-1).all()):
                raise
            raise NonFinite(
                f"With every token replaced by padding (token {self.model.padding}) the output of the model is not "
                "finite: it masks that token by itself, so there is nothing left to attend to. Use fill='drop', or "
                "fill='unknown' if the tokenizer has such a token."
            ) from None

    def run_by_length(self, keep: Tensor, of: Tensor, fill: str, lengths: Tensor, *, mixes: bool) -> Answers:
        """The answers with tokens removed, texts of similar length (or, unless it `mixes`, of one length) together.

        Answers are in the order of the rows.
        """
        order = lengths.argsort(stable=True)
        answers = []
        for rows in self.chunks(len(of), "forwards"):
            at = order[rows]
            for group in [at] if mixes else [at[lengths[at] == length] for length in lengths[at].unique()]:
                varied = perturb.replace_tokens(self.model, self.encoded, keep[group], of[group], fill)
                answers.append(self.run_batch(varied, of[group]))
        return take_answers(join_answers(answers), order.argsort())

    @neutral_torch()
    def run_batch(self, encoded: EncodedBatch, of: Tensor) -> Answers:
        """The answers to one batch; row i is a variant of example of[i]."""
        returned = run_plain_returned(self._shadow, encoded)
        self.spent["forward"] += encoded.batch
        return self.read_answers(encoded, returned, of)

    @cached_property
    def _shadow(self) -> nn.Module:
        return make_shadow(self.model.module)

    def read_answers(self, encoded: EncodedBatch, returned: Any, of: Tensor) -> Answers:
        """Score and probability of each row's target in what the model returned."""
        if not bool(find_output(returned, self.model.module).isfinite().all()):
            raise NonFinite("The model's output for a perturbed input is not finite. Use another fill.")
        return self.reading.read(encoded, returned, of)

    # --- fills --------------------------------------------------------------------------------------------------------

    def check_fill(self, fill: str | None) -> str:
        """The fill to use: the default for None; an unknown one raises."""
        if fill is None:
            return self.fill
        kind, fills = "a text", tuple[str, ...](perturb.TEXT_FILLS)
        if self.is_image or self.is_signal:
            kind = "an image" if self.is_image else "a signal"
            fills = perturb.IMAGE_FILLS if self.is_image else perturb.SIGNAL_FILLS
        elif self.is_vectors:
            kind, fills = "a sequence of vectors", (*perturb.SIGNAL_FILLS, "pad", "delete")
        known = (*fills, "drop")
        if not isinstance(fill, str) or fill not in known:
            there_are = ", ".join(map(repr, known))
            raise MethodError(f"fill={fill!r} is not a choice for {kind}. Available: {there_are}.", code="E_OPTION")
        return fill

    def erase_pixels(self, keep: Tensor, of: Tensor, fill: str, seed: int) -> EncodedBatch:
        return perturb.erase_pixels(self.model, self.encoded, self.grid, keep, of, fill, seed)

    def erase_frames(self, keep: Tensor, of: Tensor, fill: str) -> EncodedBatch:
        owners, shape = self.layout.owners, self.encoded.inputs[self.encoded.main].shape[1:]
        if owners is None:  # every vector is a frame
            refuse_unknown_frames(self.encoded, self.layout)
            owners = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)).expand(shape)
        return perturb.erase_frames(self.encoded, owners, keep, of, fill)

    def drop_tokens(self, keep: Tensor, of: Tensor) -> Intervention:
        """Remove the attention to dropped tokens; the rest of each row is scaled to sum to 1, or 0 if it is empty."""
        stays = torch.ones(len(of), self.layout.length, dtype=torch.bool)
        stays[:, self.places] = keep | ~self.real[of]
        stays = stays.to(self.model.device)[:, None, None, :]

        def keep_left(_: int, attention: Tensor) -> Tensor:
            if attention.size(-1) != stays.size(-1):
                raise UnsupportedModel('fill="drop" needs the same tokens at every layer. Use another fill.')
            left = attention * stays
            total = left.sum(-1, keepdim=True)
            return torch.where(stays.all(-1, keepdim=True), attention, left / total.masked_fill(total == 0, 1))

        return Intervention(attention=keep_left)

    # --- old spellings ------------------------------------------------------------------------------------------------

    @property
    def is_picture(self) -> bool:
        """Deprecated: use `is_image`."""
        warn_renamed("Probe.is_picture", "Probe.is_image")
        return self.is_image

    def without(self, keep: Tensor, of: Tensor, fill: str | None = None, *, seed: int = 0) -> Answers:
        """Deprecated: use `keep_only`."""
        warn_renamed("Probe.without", "Probe.keep_only")
        return self.keep_only(keep, of, fill, seed=seed)

    def inputs(self, tensors: Tensor | Callable[[Tensor], Tensor], of: Tensor) -> Answers:
        """Deprecated: use `replace_inputs`."""
        warn_renamed("Probe.inputs", "Probe.replace_inputs")
        return self.replace_inputs(tensors, of)

    def at_leaf(self, leaf: Tensor, of: Tensor, *, gradient: bool = True) -> tuple[Answers, Tensor | None]:
        """Deprecated: use `run_at_leaf`."""
        warn_renamed("Probe.at_leaf", "Probe.run_at_leaf")
        return self.run_at_leaf(leaf, of, gradient=gradient)


def scale_module_input(shadow: nn.Module, *, path: str, scale: float) -> None:
    """Make the module at that path multiply the state it gets by `scale` when it is called for the first time."""

    def scale_first(_: nn.Module, args: Any, kwargs: Any) -> Any:
        hook.remove()  # ALBERT calls one module for every block
        place = next((i for i, arg in enumerate(args) if is_state(arg)), None)
        if place is not None:
            return (*args[:place], args[place] * scale, *args[place + 1 :]), kwargs
        name = next(name for name, arg in kwargs.items() if is_state(arg))
        return args, {**kwargs, name: kwargs[name] * scale}

    hook = shadow.get_submodule(path).register_forward_pre_hook(scale_first, with_kwargs=True)


def is_state(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point()


def read_hidden_states(run: Run) -> list[Tensor]:
    """[row token channel] at every block boundary of a run, for `Probe.intervene(look=...)`."""
    states, _ = find_blocks(run.mode)
    if (wrong := next((state for state in states if state.dim() != 3), None)) is not None:
        raise UnsupportedModel(
            f"The hidden states have the shape {list(wrong.shape)}, not [batch, token, channel]. Methods that need "
            "hidden states do not support this yet."
        )
    return [to_canonical_axes(state.detach(), trace_of(state)) for state in states]


def join_answers(parts: list[Answers]) -> Answers:
    if not parts:
        raise MethodError("There are no variants to run.")
    return Answers(*(torch.cat([getattr(p, name) for p in parts]) for name in ("score", "probability", "logits")))
