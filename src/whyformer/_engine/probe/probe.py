r"""The probe: runs the model on variants of the explained examples.

A method that perturbs the input, integrates over it or changes the attention needs `probe`. It describes the variants,
one row each, and gets the model's answer to every row. The target stays that of the original example, whatever the
model predicts for a variant. The model runs on batches of rows (batching.py); `spent` counts the rows that went forward
and backward. `spent["tail"]` counts the forwards among them that ran only the tokens after a prefix that the variants
of a prompt share (prefix.py), `spent["tail_refused"]` those that were to do so, but the model cannot.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from whyformer._engine.layout.blocks import find_attention_blocks, find_block_calls
from whyformer._engine.layout.layout import (
    Layout,
    axis_order_of,
    from_canonical_axes,
    order_leaf,
    refuse_flat_embeddings,
    refuse_unknown_frames,
    split_entries,
    to_canonical_axes,
    unorder_leaf,
)
from whyformer._engine.probe.batching import (
    CALL_TOKENS,
    Launched,
    Prepared,
    chosen_batching,
    count_rows,
    plan_batches,
    run_batches,
    takes_shortcut,
)
from whyformer._engine.probe.prefix import NoPrefix, Prompts, cut_prefix, read_prompts, takes_cache
from whyformer._engine.run.forward import Run, run_forward, run_plain_returned
from whyformer._engine.run.graph import compute_gradients
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.run.model_code import are_modules_known
from whyformer._engine.run.model_memory import learnt
from whyformer._engine.run.model_writes import refuse_changed_weights
from whyformer._engine.run.returned import Returned, find_output
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.targets.function_target import FunctionReading
from whyformer._engine.targets.target import REPRESENTATION, Answers, ClassReading, Reading, Target
from whyformer._engine.targets.terms import TermSum
from whyformer._engine.tracing.attention import find_layer_sites
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model import (
    IMAGE_FILLS,
    PICTURE_FILLS,
    PIXELS,
    SIGNAL_FILLS,
    TEXT_FILLS,
    EncodedBatch,
    Model,
    can_cut_padding,
    count_streams,
    count_writes,
    cut_tokens,
    erase_frames,
    erase_pixels,
    find_fill_token,
    hide_image_tokens,
    holds_cut_patches,
    list_modules,
    pick_examples,
    replace_main,
    replace_tokens,
    send_to_device,
    takes_mask,
)
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.words import list_some
from whyformer.errors import InputError, MethodError, NonFinite, TargetError, UnsupportedModel

WORTHWHILE = 0.1  # the share of the tokens that a shortcut must save
Read = TypeVar("Read")
PendingAnswers: TypeAlias = Callable[[], Answers]  # waits for a batch that was launched
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
        *,
        runs_alone: bool = False,
    ) -> None:
        """runs_alone: the model moves the rows of a batch, so what is read or changed inside it needs a batch of 1."""
        self.model, self.encoded, self.layout, self.runs_alone = model, encoded, layout, runs_alone
        self.reading = reading or ClassReading(model.module, targets)
        self.batch = encoded.batch
        self.targets, self.tokens = targets, layout.tokens
        self.spent: Counter[str] = Counter()
        self.notes: tuple[str, ...] = ()  # on what was removed so far
        self.weight_versions = count_writes(model.module)

    # --- what can be removed ------------------------------------------------------------------------------------------

    @property
    def is_image(self) -> bool:
        return self.encoded.inputs[self.encoded.main].dim() == 4

    @property
    def shows_images(self) -> bool:
        """There are images between the words. Sounds there are hidden as words are."""
        return self.encoded.pictures is not None and self.encoded.pictures.kind == "image"

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
        positions = self.layout.patches or self.layout.positions
        if self.layout.obstacle:
            raise UnsupportedModel(self.layout.obstacle)
        self.refuse_joined_tokens()
        if self.layout.slots is not None:
            if bool((self.layout.slots != self.layout.slots[:1]).any()) or bool((self.layout.slots < 0).any()):
                raise UnsupportedModel(
                    "The order of the tokens in this model differs from example to example, or it leaves tokens out. "
                    "Methods that change attention do not work. Pass one example, or use another fill or method."
                )
            return self.layout.slots[0]
        if positions is None and self.units != self.layout.length:
            raise UnsupportedModel(
                f"The input has {self.units} tokens, the attention covers {self.layout.length}, and which is which is "
                "not known. Methods that change attention do not work."
            )
        return torch.arange(self.units) if positions is None else torch.tensor(positions)

    def refuse_joined_tokens(self) -> None:
        if self.layout.is_joined:
            raise UnsupportedModel(
                f"{self.model.name} does not have the same tokens at every layer (windows, parts of a text, merged or "
                "added tokens). Methods that change attention do not support this yet. Use another fill or method."
            )

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
        if self.is_signal or self.is_image:
            return "mean" if self.is_signal else "zero"
        if holds_cut_patches(self.encoded.inputs):
            return "zero"
        pictures = self.encoded.pictures
        if pictures is not None and self.shows_images and pictures.is_image is not None and pictures.owners is None:
            return "drop"  # tokens that are computed from whole images have no pixels of their own
        return self.word_fill

    @property
    def word_fill(self) -> str:
        """The default fill for the tokens of a text."""
        has_ids = not self.encoded.inputs[self.encoded.main].is_floating_point()
        if has_ids and getattr(self.model.tokenizer, "mask_token_id", None) is not None:
            return "mask"
        return "pad" if has_ids or takes_mask(self.model, self.encoded) else "delete"

    @cached_property
    def before(self) -> Answers:
        """The answers to the original examples."""
        rows = torch.arange(self.batch)
        if not self.runs_alone:
            return self.run_batch(self.encoded, rows)
        return join_answers([self.run_batch(pick_examples(self.encoded, row), row) for row in rows.split(1)])

    # --- running ------------------------------------------------------------------------------------------------------

    @neutral_torch()
    def refuse_changed_weights(self) -> AbstractContextManager[None]:
        """Refuse to go on if the weights of the model were changed since the probe was made."""
        return refuse_changed_weights(self.model.module, self.weight_versions)

    def keep_only(self, keep: Tensor, of: Tensor, fill: str | None = None, *, seed: int = 0) -> Answers:
        """The answers when only some units are kept and the others are removed. Special tokens and padding always stay.

        keep: [n unit], or [n height width] for the pixels of an image; True where something is kept.
        of: [n], the example that each row is a variant of.
        fill: what takes the place of removed units (see _model/variants.py), or "drop": no token attends to them.
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
        if self.shows_images:
            return self.run_variants(of, lambda rows: self.hide_pictures_and_words(keep[rows], of[rows], fill))
        if fill in SIGNAL_FILLS:
            return self.run_variants(of, lambda rows: self.erase_frames(keep[rows], of[rows], fill))
        refuse_unknown_frames(self.encoded, self.layout)
        if fill == "delete" and count_streams(self.encoded):
            raise MethodError("fill='delete' does not work for an encoder and a decoder. Use 'pad'.", code="E_OPTION")
        if fill == "delete":
            return self.run_shortened(keep, of)
        self.notes = self.note_own_fill(fill)
        return self.run_masked(keep, of) if fill == "pad" else self.run_replaced(keep, of, fill)

    def note_own_fill(self, fill: str) -> tuple[str, ...]:
        """Words that are the very token which takes the place of removed ones: without them nothing changes."""
        ids = self.encoded.inputs[self.encoded.main].cpu()
        is_hidden = fill == "pad" and takes_mask(self.model, self.encoded)
        if ids.is_floating_point() or is_hidden or ids.shape != self.real.shape:
            return ()
        token = find_fill_token(self.model, fill)
        rows = [row for row in self.tokens if isinstance(row, Pieces)]
        same = dict.fromkeys(rows[row].pieces[i] for row, i in (self.real & (ids == token)).nonzero().tolist())
        if not same:
            return ()
        return (
            f"Removed words are replaced by token {token}, which {list_some([repr(piece) for piece in same])} already "
            "is: what the answer loses without it does not show. Pass fill='delete', or another.",
        )

    @neutral_torch()
    def replace_inputs(self, tensors: Tensor | Callable[[Tensor], Tensor], of: Tensor) -> Answers:
        """The answers to other pixels [n channel height width] or token ids [n token].

        tensors: all of them, or a function that returns those of the given rows, to save memory.
        of: [n], the example that each row is a variant of.
        """

        def make_variant(rows: Tensor) -> EncodedBatch:
            chosen = pick_examples(self.encoded, of[rows])
            own = chosen.inputs[chosen.main]
            given = tensors[rows.to(tensors.device)] if isinstance(tensors, Tensor) else tensors(rows)
            return replace_main(chosen, send_to_device(given.to(own.dtype), own.device))

        return self.run_variants(of, make_variant)

    @neutral_torch()
    def run_at_leaf(self, leaf: Tensor, of: Tensor, *, gradient: bool = True) -> tuple[Answers, Tensor | None]:
        """The answers when the explained input is replaced by `leaf`, and the gradient of the score there.

        leaf: [n token channel], the sum of embeddings, or [n height width channel], pixels, like the site `input`.
        """

        def run_rows(rows: Tensor) -> tuple[Answers, Tensor | None]:
            with self._run_rows_at_leaf(leaf, of, rows) as (run, answer):
                if not gradient:
                    return answer.map(Tensor.detach), None
                if not (starts := run.mode.leaves):
                    raise UnsupportedModel(NO_INPUT)
                parts = zip(compute_gradients(answer.score, starts), starts, strict=True)
                back = torch.cat([to_canonical_axes(part, trace_of(start)) for part, start in parts], 1)
                back = order_leaf(back, self.layout, of[rows])
                return answer.map(Tensor.detach), back

        found = self.run_whole(run_rows, len(of), "gradients" if gradient else "forwards", with_graph=True)
        self.spent["backward"] += len(of) * gradient
        answers, gradients = zip(*found, strict=True) if found else ((), ())
        return join_answers(list(answers)), torch.cat(gradients) if gradient else None

    @neutral_torch()
    def compute_last_attention_grad(self, leaf: Tensor, of: Tensor) -> Tensor:
        """[n head query key]: the gradient of the score by the last attention, when the input is `leaf`."""
        return self._gather_last_attention_grad(of, lambda rows: self._run_rows_at_leaf(leaf, of, rows))

    @neutral_torch()
    def compute_last_attention_grad_scaled(self, scale: float, of: Tensor) -> Tensor:
        """The same when the state that enters the first block is multiplied by `scale`."""
        prepare = partial(scale_module_input, path=self._first_block, scale=scale)
        return self._gather_last_attention_grad(of, lambda rows: self._run_rows(of[rows], prepare=prepare))

    def _gather_last_attention_grad(
        self, of: Tensor, run_rows: Callable[[Tensor], AbstractContextManager[tuple[Run, Answers]]]
    ) -> Tensor:
        self.refuse_joined_tokens()

        def take_gradient(rows: Tensor) -> Tensor:
            with run_rows(rows) as (run, answer):
                site = find_layer_sites(run.mode.sites)[-1]
                (back,) = compute_gradients(answer.score, [site.output])
                return site.split_heads(back) @ site.value.mT

        gradients = self.run_whole(take_gradient, len(of), "gradients", with_graph=True)
        self.spent["backward"] += len(of)
        return torch.cat(gradients)

    @contextmanager
    def _run_rows(
        self, of: Tensor, start: Tensor | None = None, prepare: Callable[[nn.Module], None] | None = None
    ) -> Iterator[tuple[Run, Answers]]:
        """One forward of these examples with a graph; `start` takes the place of the explained input."""
        chosen = pick_examples(self.encoded, of)
        if start is not None and self.encoded.inputs[self.encoded.main].is_floating_point():
            chosen = replace_main(chosen, start)
        with run_forward(self.model, chosen, asks_gradient=True, starting_at=start, prepare=prepare) as run:
            yield run, self.read_answers(chosen, run.returned, of)
        self.spent["forward"] += len(of)

    @cached_property
    def _first_block(self) -> str:
        """The path of the module that is the first block."""
        with run_forward(self.model, self.encoded, asks_gradient=False) as run:
            self.spent["forward"] += self.batch
            return find_block_calls(run.mode)[0].path

    def _run_rows_at_leaf(self, leaf: Tensor, of: Tensor, rows: Tensor) -> AbstractContextManager[tuple[Run, Answers]]:
        """One forward with a graph, of some rows of `leaf` in place of the explained input."""
        given = leaf[rows.to(leaf.device)].to(self.model.device, self.model.dtype)
        given = unorder_leaf(given, self.layout, of[rows], self._leaf_parts[3][of[rows]].to(given))
        start = from_canonical_axes(given, self._leaf_parts[2])
        if self.is_signal:
            start = given.reshape(len(rows), *self.encoded.inputs[self.encoded.main].shape[1:])
        return self._run_rows(of[rows], start)

    @neutral_torch()
    def intervene(
        self, make: Callable[[Tensor], Intervention], of: Tensor, *, look: Callable[[Run], Read] | None = None
    ) -> tuple[Answers, list[Read]]:
        """The answers while the run is changed by an intervention, and what `look` returned for each chunk.

        make: returns the intervention for the given rows.
        look: reads something from a run. It is required for a model without a head, whose answers are empty.
        """
        if count_streams(self.encoded):
            raise UnsupportedModel("Attention of an encoder and a decoder cannot be changed token by token yet.")
        self.refuse_joined_tokens()
        has_answers = self.targets[0].label != REPRESENTATION or look is None

        def run_rows(rows: Tensor) -> tuple[Answers | None, Read | None]:
            chosen = pick_examples(self.encoded, of[rows])
            with run_forward(self.model, chosen, asks_gradient=False, intervention=make(rows)) as run:
                answer = self.read_answers(chosen, run.returned, of[rows]).map(Tensor.detach) if has_answers else None
                seen = look(run) if look is not None else None
            self.spent["forward"] += len(rows)
            return answer, seen

        found = self.run_whole(run_rows, len(of), "interventions")
        seen = [one for _, one in found if one is not None]
        if not has_answers:
            return Answers(*[torch.empty(0)] * 3), seen
        return join_answers([answer for answer, _ in found if answer is not None]), seen

    # --- the explained input as numbers -------------------------------------------------------------------------------

    @property
    def leaf(self) -> Tensor:
        """The explained input: [batch token channel], the sum of embeddings, or [batch height width channel]."""
        return self._leaf_parts[0]

    @property
    def words(self) -> Tensor:
        """The part of the leaf that comes from the token ids; for an image, all of it."""
        return self._leaf_parts[1]

    @cached_property
    def _leaf_parts(self) -> tuple[Tensor, Tensor, str, Tensor]:
        return self.find_leaf_parts(self.encoded)

    @neutral_torch()
    def find_leaf_parts(self, encoded: EncodedBatch) -> tuple[Tensor, Tensor, str, Tensor]:
        """The explained input, the part of it that comes from token ids, the model's order of axes, and the input in
        the model's order of tokens."""
        refuse_unknown_frames(encoded, self.layout)
        with run_forward(self.model, encoded, asks_gradient=True) as run:
            self.spent["forward"] += encoded.batch
            leaf = run.mode.leaf
            if leaf is None:
                raise UnsupportedModel(NO_INPUT)
            refuse_flat_embeddings(leaf, encoded)
            leaves = run.mode.leaves
            own, words = (
                torch.cat([to_canonical_axes(part, trace_of(at)) for part, at in zip(parts, leaves, strict=True)], 1)
                for parts in ([one.detach() for one in leaves], run.mode.leaf_words)
            )
            whole, part = (order_leaf(t, self.layout) for t in (own, words))
            return whole, part, axis_order_of(leaf, trace_of(leaf)), own

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
        ids, token = self.encoded.inputs[self.encoded.main], find_fill_token(self.model, kind)
        blank = replace_main(self.encoded, torch.where(self.real.to(self.model.device), token, ids))
        words = self.find_leaf_parts(blank)[1]
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

    # --- in batches ---------------------------------------------------------------------------------------------------

    def run_whole(self, run: Callable[[Tensor], Read], rows: int, what: str, *, with_graph: bool = False) -> list[Read]:
        """What `run` returned for each batch of row numbers. with_graph: it keeps a graph for a backward pass."""
        is_alone = self.runs_alone or learnt(self.model.module).maps_examples
        size = 1 if is_alone else count_rows(self.model, self.layout.length, with_graph=with_graph)
        batches = list(torch.arange(rows).split(size)) if rows else []
        done = self._run_planned(batches, lambda rows: rows, lambda _, rows: run(rows), what, lambda found, _: found)
        return [found for _, found in done]

    def _run_planned(
        self,
        batches: Sequence[Tensor],
        prepare: Callable[[Tensor], Prepared],
        launch: Callable[[Prepared, Tensor], Launched],
        what: str,
        finish: Callable[[Launched, Tensor], Read],
    ) -> list[tuple[Tensor, Read]]:
        """The rows and the result of each batch, with a progress bar."""
        done = []
        unchanged = self.refuse_changed_weights()
        with unchanged, show_progress(sum(map(len, batches)), what) as progress:
            for rows, found in run_batches(batches, self.model, prepare, launch, finish):
                done.append((rows, found))
                progress.advance(len(rows))
        return done

    def run_variants(self, of: Tensor, make_variant: Callable[[Tensor], EncodedBatch]) -> Answers:
        """The answers to variants of one length; make_variant returns those of the given rows."""
        batches = list(torch.arange(len(of)).split(count_rows(self.model, self.layout.length))) if len(of) else []
        return self._ask(batches, make_variant, lambda variant, rows: self.launch_batch(variant, of[rows]))

    def _ask(
        self,
        batches: Sequence[Tensor],
        prepare: Callable[[Tensor], EncodedBatch],
        launch: Callable[[EncodedBatch, Tensor], PendingAnswers],
    ) -> Answers:
        """The answers to all rows, in their order."""
        done = self._run_planned(batches, prepare, launch, "forwards", lambda finish, _: finish())
        answers = join_answers([found for _, found in done])
        at = torch.cat([rows for rows, _ in done]).argsort().to(answers.score.device)
        return answers.map(lambda column: column[at])

    @neutral_torch()
    def run_batch(self, encoded: EncodedBatch, of: Tensor) -> Answers:
        """The answers to one batch; row i is a variant of example of[i]."""
        return self.launch_batch(encoded, of)()

    def launch_batch(self, encoded: EncodedBatch, of: Tensor) -> PendingAnswers:
        """Run the model; on a GPU this does not wait for it. What is returned waits, and gives the answers."""
        returned = run_plain_returned(self._shadow, encoded)
        self.spent["forward"] += encoded.batch
        return self._hold(encoded, returned, of)

    def _hold(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> PendingAnswers:
        """Reads the answers of a run when it is called; logits of every token are too large to keep until then."""
        read = partial(self.read_answers, encoded, returned, of)
        if find_output(returned, self.model.module).dim() < 3:
            return read
        answers = read()
        return lambda: answers

    # --- texts --------------------------------------------------------------------------------------------------------

    def run_shortened(self, keep: Tensor, of: Tensor) -> Answers:
        """The answers with tokens deleted."""
        mask = self.encoded.token_mask
        if mask is not None and mask.size(1) != keep.size(1):  # a video, say: a token is not one step of the input
            raise UnsupportedModel(
                f"The input has {mask.size(1)} steps and the attention {keep.size(1)} tokens, and which belong "
                "together is not known. Methods that change the input do not support this yet."
            )
        lengths = self._find_left(keep, of).sum(-1)
        way_out = "Use fill='mean'." if self.is_vectors else "Use fill='pad' or 'drop'."
        if not bool(lengths.all()):
            raise InputError(f"Deleting all tokens leaves an empty input. {way_out}")
        mixes = takes_mask(self.model, self.encoded) and self.ignores_padding(keep, of, lengths)
        try:
            return self.run_by_length(keep, of, "delete", lengths, mixes=mixes)
        except InputError as error:
            raise InputError(f"The model cannot run after tokens were deleted. {way_out} ({error})") from error

    def ignores_padding(self, keep: Tensor, of: Tensor, lengths: Tensor) -> bool:
        """Whether the shortest variant has the same answer beside the longest as alone; library code is not tried."""
        shortest, longest = lengths.argmin()[None], lengths.argmax()[None]
        if lengths[shortest] == lengths[longest] or are_modules_known(list_modules(self.model.module)):
            return True

        def run(*rows: Tensor) -> Answers:
            which = torch.cat(rows)
            variant = replace_tokens(self.model, self.encoded, keep[which], of[which], "delete")
            return self.run_batch(variant, of[which]).map(lambda found: found[:1])

        return takes_shortcut(
            self.model.module, "padded variants", lambda: run(shortest), lambda: run(shortest, longest)
        )

    def run_masked(self, keep: Tensor, of: Tensor) -> Answers:
        """The answers with tokens masked, in texts without padding, to which the masked tokens of DeBERTa attend."""
        try:
            return self.run_by_length(keep, of, "pad", self._count_tokens(of), mixes=False)
        except NonFinite:
            if bool(self._find_left(keep, of).any(-1).all()):
                raise
            raise NonFinite(
                f"With every token replaced by padding (token {self.model.padding}) the output of the model is not "
                "finite: it masks that token by itself, so there is nothing left to attend to. Use fill='drop', or "
                "fill='unknown' if the tokenizer has such a token."
            ) from None

    def run_replaced(self, keep: Tensor, of: Tensor, fill: str) -> Answers:
        """The answers with tokens replaced; short texts run without the padding that makes them as long as others."""
        lengths = self._count_tokens(of)
        is_wasteful = self._saves(len(of) * self.units - int(lengths.sum()), of)
        cuts = is_wasteful and chosen_batching.get().cut_padding and can_cut_padding(self.encoded)
        if cuts:
            shortest = lengths.argmin()[None]
            variant = replace_tokens(self.model, self.encoded, keep[shortest], of[shortest], fill)
            cuts = takes_shortcut(
                self.model.module,
                "cut padding",
                lambda: self.run_batch(variant, of[shortest]),
                lambda: self.run_batch(cut_tokens(variant, slice(int(lengths[shortest]))), of[shortest]),
            )
        lengths = lengths if cuts else torch.full_like(lengths, self.units)
        return self.run_by_length(keep, of, fill, lengths, mixes=True, cuts=cuts)

    def _count_tokens(self, of: Tensor) -> Tensor:
        mask = self.encoded.token_mask
        return torch.full((len(of),), self.units) if mask is None else mask.sum(-1)[of]

    def _find_left(self, keep: Tensor, of: Tensor) -> Tensor:
        """[n token]: the tokens that are kept and not padding."""
        mask = self.encoded.token_mask
        return keep if mask is None else keep & mask[of]

    def run_by_length(
        self, keep: Tensor, of: Tensor, fill: str, lengths: Tensor, *, mixes: bool, cuts: bool = False
    ) -> Answers:
        """The answers with tokens removed, texts of similar length (or, unless it `mixes`, of one length) together.

        lengths: [n], tokens of each variant. cuts: cut the padding that the texts of a batch have in common.
        """

        def make_variant(rows: Tensor) -> EncodedBatch:
            variant = replace_tokens(self.model, self.encoded, keep[rows], of[rows], fill)
            return cut_tokens(variant, slice(int(lengths[rows].max()))) if cuts else variant

        shared = self.count_shared_tokens(keep, of, fill, lengths, make_variant)
        has_streams = bool(count_streams(self.encoded))  # whose padding stays where it is
        groups = torch.zeros_like(lengths) if mixes or has_streams else lengths
        call_tokens = CALL_TOKENS.get(self.model.device.type, CALL_TOKENS["cpu"])
        batches = plan_batches(shared, lengths, groups, count_rows(self.model, self.units), call_tokens)
        return self._ask(
            batches, make_variant, lambda variant, rows: self._launch_text(variant, of[rows], int(shared[rows].min()))
        )

    # --- prefixes -----------------------------------------------------------------------------------------------------

    def count_shared_tokens(
        self, keep: Tensor, of: Tensor, fill: str, lengths: Tensor, make_variant: Callable[[Tensor], EncodedBatch]
    ) -> Tensor:
        """[n]: the tokens at the start of each variant that need not run, because its prompt has the same ones."""
        nothing = torch.zeros(len(of), dtype=torch.long)
        read_at = self._earliest_read
        if read_at is None or not chosen_batching.get().reuse_prefix or not takes_cache(self.model.module):
            return nothing
        first = torch.where(keep.all(-1), self.units, (~keep).to(torch.uint8).argmax(-1))
        last = lengths - 1  # attended to; after it a language model predicts
        if fill == "pad":
            left = self._find_left(keep, of)
            last = torch.where(left, torch.arange(left.size(1)), 0).amax(-1).clamp(max=last)
        shared = torch.minimum(first, torch.minimum(last, read_at[of]))
        if not self._saves(int(shared.sum()) - self.encoded.batch * self.units, of):
            return nothing
        changed = ((shared > 0) & (first < lengths)).nonzero()[:, 0]
        if not len(changed):
            return nothing
        ends = changed[shared[changed].argsort()[[0, -1]]]
        if self._try_prefixes(ends, of, fill, shared, make_variant):
            return shared
        self.spent["tail_refused"] += len(of)
        return nothing

    def _try_prefixes(
        self, rows: Tensor, of: Tensor, fill: str, shared: Tensor, make_variant: Callable[[Tensor], EncodedBatch]
    ) -> bool:
        """Whether these rows have the same answers if only their tails run. What the trial takes is not counted."""
        spent, known = Counter(self.spent), set(self.__dict__)

        def run_wholly() -> Answers:
            return join_answers([self.run_batch(make_variant(row), of[row]) for row in rows.split(1)])

        def run_tails() -> Answers:
            launched = [
                self._launch_text(make_variant(row), of[row], int(shared[row]), must=True) for row in rows.split(1)
            ]
            return join_answers([finish() for finish in launched])

        prompts = (tuple(self.encoded.inputs), self.units)  # a prompt may be too long for a cache, another one not
        works = takes_shortcut(self.model.module, ("prefix", fill, *prompts), run_wholly, run_tails)
        self.spent = spent
        if works and "_prompts" in set(self.__dict__) - known:
            self.spent["forward"] += self.batch
        elif not works and "before" not in known:
            self.__dict__.pop("before", None)
        return works

    def _launch_text(self, variant: EncodedBatch, of: Tensor, shared: int, *, must: bool = False) -> PendingAnswers:
        """Run the tokens after the shared ones; all of them if there are none."""
        length = min(shared, self._prompts.count_shared(variant, of)) if shared else 0
        if not length:
            if must:
                raise NoPrefix("The variant has no token in common with its prompt.")
            return self.launch_batch(variant, of)
        tail = cut_prefix(variant, length)
        returned = self._prompts.run_tails(self._shadow, tail, of, length)
        self.spent["forward"] += variant.batch
        self.spent["tail"] += variant.batch
        return self._hold(tail, returned, of)

    def _saves(self, tokens: int, of: Tensor) -> bool:
        """Whether so many tokens fewer are worth a shortcut."""
        return tokens > WORTHWHILE * len(of) * self.units

    @cached_property
    def _prompts(self) -> Prompts:
        prompts = read_prompts(self._shadow, self.encoded)
        self.spent["forward"] += self.batch
        if "before" not in self.__dict__:
            self.__dict__["before"] = self.read_answers(self.encoded, prompts.returned, torch.arange(self.batch))
        return replace(prompts, returned=None)

    @cached_property
    def _earliest_read(self) -> Tensor | None:
        """[batch]: the first token whose output is read; None if that is not known."""
        if isinstance(self.reading, ClassReading):
            return torch.full((self.batch,), self.units)  # the last token of each variant
        function = self.reading.function if isinstance(self.reading, FunctionReading) else None
        if not isinstance(function, TermSum):
            return None
        positions = ((term.at[0] for term in terms if term.has_token) for terms in function.terms)
        return torch.tensor([min(some, default=self.units) for some in positions])

    @cached_property
    def _shadow(self) -> nn.Module:
        return make_shadow(self.model.module)

    def read_answers(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers:
        """Score and probability of each row's target in what the model returned."""
        if is_finite(find_output(returned, self.model.module)):
            return self.reading.read(encoded, returned, of)
        with suppress(TargetError):  # of a function that gave NaN
            answers = self.reading.read(encoded, returned, of)
            if is_finite(answers.score):  # other classes may have no value
                return answers
        raise NonFinite("The model's output for a perturbed input is not finite. Use another fill.")

    # --- fills --------------------------------------------------------------------------------------------------------

    def check_fill(self, fill: str | None) -> str:
        """The fill to use: the default for None; an unknown one raises."""
        if fill is None:
            return self.fill
        if self.shows_images:
            words = tuple(name for name in TEXT_FILLS if name != "delete")
            kind, known = "images between words", (*PICTURE_FILLS, *words, "drop")
        elif self.is_image:
            kind, known = "an image", (*IMAGE_FILLS, "drop")
        elif self.is_signal or self.is_vectors:
            kind = "a signal" if self.is_signal else "a sequence of vectors"
            known = (*SIGNAL_FILLS, *(() if self.is_signal else ("pad", "delete")), "drop")
        else:
            kind, known = "a text", (*TEXT_FILLS, "drop")
        if not isinstance(fill, str) or fill not in known:
            there_are = ", ".join(map(repr, known))
            raise MethodError(f"fill={fill!r} is not a choice for {kind}. Available: {there_are}.", code="E_OPTION")
        return fill

    def erase_pixels(self, keep: Tensor, of: Tensor, fill: str, seed: int) -> EncodedBatch:
        return erase_pixels(self.model, self.encoded, self.grid, keep, of, fill, seed, self.layout.blank)

    def hide_pictures_and_words(self, keep: Tensor, of: Tensor, fill: str) -> EncodedBatch:
        """Variants with the pixels of some image tokens filled, and some words replaced."""
        pictures = self.encoded.pictures
        assert pictures is not None and pictures.is_image is not None
        is_visual = fill in PICTURE_FILLS
        words = replace_tokens(
            self.model, self.encoded, keep | pictures.is_image, of, self.word_fill if is_visual else fill
        )
        if bool((keep | ~pictures.is_image).all()):
            return words
        pixels = self.encoded.inputs[PIXELS]
        return hide_image_tokens(words, pixels, keep, fill if is_visual else "zero")

    def erase_frames(self, keep: Tensor, of: Tensor, fill: str) -> EncodedBatch:
        owners, shape = self.layout.owners, self.encoded.inputs[self.encoded.main].shape[1:]
        if owners is None:  # every vector is a frame
            refuse_unknown_frames(self.encoded, self.layout)
            owners = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)).expand(shape)
        return erase_frames(self.encoded, owners, keep, of, fill)

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


def scale_module_input(shadow: nn.Module, *, path: str, scale: float) -> None:
    """Make the module at that path multiply the state it gets by `scale` when it is called for the first time."""

    def scale_first(
        _: nn.Module, args: tuple[Returned, ...], kwargs: dict[str, Returned]
    ) -> tuple[tuple[Returned, ...], dict[str, Returned]]:
        hook.remove()  # ALBERT calls one module for every block
        for index, state in enumerate(args):
            if is_state(state):
                return (*args[:index], state * scale, *args[index + 1 :]), kwargs
        name, state = next((name, state) for name, state in kwargs.items() if is_state(state))
        return args, {**kwargs, name: state * scale}

    hook = shadow.get_submodule(path).register_forward_pre_hook(scale_first, with_kwargs=True)


def is_state(argument: Returned) -> TypeGuard[Tensor]:
    return isinstance(argument, Tensor) and argument.is_floating_point()


def read_hidden_states(run: Run) -> list[Tensor]:
    """[row token channel] before every block with attention and after the last, for `Probe.intervene(look=...)`."""
    found, _ = find_attention_blocks(run.mode)
    states = [to_canonical_axes(state.detach(), trace_of(state)) for state in found]
    if (wrong := next((state for state in states if state.dim() != 3), None)) is not None:
        raise UnsupportedModel(
            f"The hidden states have the shape {list(wrong.shape)}, not [batch, token, channel]. Methods that need "
            "hidden states do not support this yet."
        )
    return states


def is_finite(output: Tensor) -> bool:
    """Whether every number is; `isfinite` would need as much memory again as the logits of a language model."""
    return not output.numel() or all(bool(end.isfinite()) for end in output.aminmax())


def join_answers(parts: list[Answers]) -> Answers:
    if not parts:
        raise MethodError("There are no variants to run.")
    return Answers(*(torch.cat([getattr(p, name) for p in parts]) for name in ("score", "probability", "logits")))
