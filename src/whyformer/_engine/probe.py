r"""The probe: the model again, on variants of the examples that are explained.

A method that perturbs, integrates or intervenes asks for `probe`, says which variants it wants, and gets the answers of
the model to all of them. The explained target is that of the first run, whatever the variants would be predicted as.
Rows go through the model in chunks whose size depends on the number of rows alone; `spent` counts them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine import perturb
from whyformer._engine.blocks import find_blocks
from whyformer._engine.forward import Run, output_of, run_forward
from whyformer._engine.intervene import Intervention
from whyformer._engine.layout import Layout, axis_order_of, from_canonical_axes, to_canonical_axes
from whyformer._engine.shadow import make_shadow
from whyformer._engine.target import REPRESENTATION, Target, probabilities_of, read_logits
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._model.unwrap import unwrap
from whyformer._plain.progress import show_progress
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError, MethodError, NonFinite, UnsupportedModel

CHUNK_ROWS = {"cpu": 32, "cuda": 256}  # rows sent through the model at once


@dataclass(frozen=True)
class Answers:
    """What the model says about each of n variants; the target is that of the example as it was."""

    score: Tensor  # [n] the explained logit, or the difference of two
    probability: Tensor  # [n] of the target; its score where the model answers with a number
    logits: Tensor  # [n class]


class Probe:
    """The model, to be asked again about the examples of one capture."""

    def __init__(self, model: Model, encoded: EncodedBatch, layout: Layout, targets: tuple[Target, ...]) -> None:
        self.model, self.encoded, self.layout = model, encoded, layout
        self.batch = encoded.batch
        self.targets, self.tokens = targets, layout.tokens
        self.spent: Counter[str] = Counter()

    # --- what can be taken away ---------------------------------------------------------------------------------------

    @property
    def is_image(self) -> bool:
        return self.encoded.inputs[self.encoded.main].dim() == 4

    @property
    def grid(self) -> Grid | None:
        """Of a picture whose patches are known."""
        first = self.tokens[0]
        return first if isinstance(first, Grid) else None

    @property
    def units(self) -> int:
        """Patches of a picture, or tokens of a text."""
        return len(self.tokens[0])

    @cached_property
    def places(self) -> Tensor:
        """[unit]: where each patch or token stands in the model's sequence."""
        patches = self.layout.patches
        return torch.arange(self.units) if patches is None else torch.tensor(patches)

    @cached_property
    def real(self) -> Tensor:
        """[batch unit]: may be taken away, being neither padding nor a special token."""
        if self.grid is not None:
            return torch.ones(self.batch, self.units, dtype=torch.bool)
        rows = [one for one in self.tokens if isinstance(one, Pieces)]
        return ~(torch.tensor([one.padding for one in rows]) | torch.tensor([one.special for one in rows]))

    @cached_property
    def fingerprints(self) -> tuple[int, ...]:
        return self.encoded.fingerprints()

    @property
    def fill(self) -> str:
        """What takes the place of what is taken away, unless something else is asked for."""
        return perturb.choose_default_fill(self.model, self.encoded)

    @cached_property
    def before(self) -> Answers:
        """The examples as they are."""
        return self.answered(self.encoded, torch.arange(self.batch))

    # --- asking -------------------------------------------------------------------------------------------------------

    def keep_only(self, keep: Tensor, of: Tensor, fill: str | None = None, *, seed: int = 0) -> Answers:
        """The answers when only some units are kept: keep [n unit], or [n height width] of a picture's pixels.

        of: [n], the example each row is a variant of. Special tokens and padding always stay.
        """
        fill = self.check_fill(fill)
        keep, of = keep.detach().bool().cpu(), of.detach().long().cpu()
        if keep.size(0) != of.size(0) or (keep.dim() == 2 and keep.size(1) != self.units):
            raise MethodError(f"keep {list(keep.shape)} does not fit {len(of)} variants of {self.units} units.")
        if fill == "drop":
            if keep.dim() != 2:
                raise MethodError("fill='drop' takes whole patches away, not pixels or superpixels. Use another fill.")
            return self.intervene(lambda rows: self.drop_tokens(keep[rows], of[rows]), of)[0]
        if self.is_image:
            return self.gathered(of, lambda rows: self.erase_pixels(keep[rows], of[rows], fill, seed))
        keep = keep | ~self.real[of]
        if fill != "delete":
            return self.gathered(
                of, lambda rows: perturb.replace_tokens(self.model, self.encoded, keep[rows], of[rows], fill)
            )
        return self.run_shortened(keep, of)

    def replace_inputs(self, tensors: Tensor | Callable[[Tensor], Tensor], of: Tensor) -> Answers:
        """The answers to other pixels [n channel height width] or ids [n token] in place of the explained input.

        Where all of them at once would be too much: a function from the numbers of some rows to these.
        """

        def variant(rows: Tensor) -> EncodedBatch:
            chosen = perturb.pick_examples(self.encoded, of[rows])
            own = chosen.inputs[chosen.main]
            given = (tensors[rows.to(tensors.device)] if isinstance(tensors, Tensor) else tensors(rows)).to(own)
            return replace(chosen, inputs={**chosen.inputs, chosen.main: given})

        return self.gathered(of, variant)

    def run_at_leaf(self, leaf: Tensor, of: Tensor, *, gradient: bool = True) -> tuple[Answers, Tensor | None]:
        """The answers when the explained input is these numbers, and the gradient of the score there.

        leaf: [n token channel], the sum of embeddings, or [n height width channel], pixels, like the site `input`.
        """
        answers, gradients = [], []
        for rows in self.chunks(len(of), "gradients" if gradient else "forwards"):
            chosen = perturb.pick_examples(self.encoded, of[rows])
            start = from_canonical_axes(leaf[rows.to(leaf.device)].to(self.model.device, self.model.dtype), self._order)
            if self.encoded.inputs[self.encoded.main].is_floating_point():
                chosen = replace(chosen, inputs={**chosen.inputs, chosen.main: start})
            with run_forward(self.model, chosen, asks_gradient=True, starting_at=start) as run:
                found = self.read(chosen, run.output, of[rows])
                if gradient:
                    if run.mode.leaf is None:
                        raise UnsupportedModel("The explained input was not found: there is no embedding of token ids.")
                    (back,) = torch.autograd.grad(found.score.sum(), run.mode.leaf)
                    gradients.append(to_canonical_axes(back, trace_of(run.mode.leaf)))
                    self.spent["backward"] += len(rows)
                answers.append(detach_answers(found))
            self.spent["forward"] += len(rows)
        return join_answers(answers), torch.cat(gradients) if gradient else None

    def last_attention_grad(self, leaf: Tensor, of: Tensor) -> Tensor:
        """[n head query key]: the gradient of the score with respect to the last attention, when the input is this."""
        found = []
        for rows in self.chunks(len(of), "gradients"):
            chosen = perturb.pick_examples(self.encoded, of[rows])
            start = from_canonical_axes(leaf[rows.to(leaf.device)].to(self.model.device, self.model.dtype), self._order)
            if self.encoded.inputs[self.encoded.main].is_floating_point():
                chosen = replace(chosen, inputs={**chosen.inputs, chosen.main: start})
            with run_forward(self.model, chosen, asks_gradient=True, starting_at=start) as run:
                site, score = run.mode.sites[-1], self.read(chosen, run.output, of[rows]).score
                (back,) = torch.autograd.grad(score.sum(), site.output)
                found.append(site.split_heads(back) @ site.value.mT)
            self.spent["forward"] += len(rows)
            self.spent["backward"] += len(rows)
        return torch.cat(found)

    def intervene(
        self,
        make: Callable[[Tensor], Intervention],
        of: Tensor,
        *,
        look: Callable[[Run], Any] | None = None,
    ) -> tuple[Answers, list[Any]]:
        """The answers under an intervention, and what `look` finds in the run of each chunk.

        A model without a head has no answers; then they are empty, and it can only be looked at.

        make: from the numbers of the rows in a chunk, what to do there.
        """
        answers, seen = [], []
        for rows in self.chunks(len(of), "interventions"):
            chosen = perturb.pick_examples(self.encoded, of[rows])
            with run_forward(self.model, chosen, asks_gradient=False, intervention=make(rows)) as run:
                if self.targets[0].label != REPRESENTATION or look is None:
                    answers.append(detach_answers(self.read(chosen, run.output, of[rows])))
                if look is not None:
                    seen.append(look(run))
            self.spent["forward"] += len(rows)
        nothing = torch.empty(0)
        return join_answers(answers) if answers or not seen else Answers(nothing, nothing, nothing), seen

    # --- the explained input as numbers -------------------------------------------------------------------------------

    @property
    def leaf(self) -> Tensor:
        """What enters the model: [batch token channel], the sum of embeddings, or [batch height width channel]."""
        return self._entered[0]

    @property
    def words(self) -> Tensor:
        """The part of the leaf that comes from the token ids themselves; of a picture, all of it."""
        return self._entered[1]

    @property
    def _order(self) -> str:
        return self._entered[2]

    @cached_property
    def _entered(self) -> tuple[Tensor, Tensor, str]:
        return self.entered(self.encoded)

    def entered(self, encoded: EncodedBatch) -> tuple[Tensor, Tensor, str]:
        """Leaf, words and the order of axes the model keeps them in."""
        with run_forward(self.model, encoded, asks_gradient=True) as run:
            self.spent["forward"] += encoded.batch
            leaf = run.mode.leaf
            if leaf is None:
                raise UnsupportedModel("The explained input was not found: there is no embedding of token ids.")
            trace = trace_of(leaf)
            words = leaf.detach() if run.mode.words is None else run.mode.words
            return to_canonical_axes(leaf.detach(), trace), to_canonical_axes(words, trace), axis_order_of(leaf, trace)

    def baseline(self, kind: str, *, seed: int = 0) -> Tensor:
        """A starting point of the leaf's shape: what is left when there is nothing to see.

        Pictures: "zero", "black", "mean", "blur", "noise". Texts: "zero" (no word, only its position), "mask",
        "unknown", "pad": every token that is neither special nor padding replaced.
        """
        everything = torch.arange(self.batch)
        if self.is_image:
            gone = torch.zeros(self.batch, *self.encoded.inputs[self.encoded.main].shape[-2:], dtype=torch.bool)
            varied = self.erase_pixels(gone, everything, self.check_fill(kind), seed)
            return varied.inputs[varied.main].permute(0, 2, 3, 1)
        if kind == "zero":
            real = self.real.to(self.leaf.device)[..., None]
            return torch.where(real, self.leaf - self.words, self.leaf)
        if kind not in ("mask", "unknown", "pad"):
            raise MethodError(
                f"baseline={kind!r} is not a choice for a text. There are: 'zero', 'mask', 'unknown', 'pad'."
            )
        chosen = self.encoded
        ids = torch.where(
            self.real.to(self.model.device), perturb.find_fill_token(self.model, kind), chosen.inputs[chosen.main]
        )
        words = self.entered(replace(chosen, inputs={**chosen.inputs, chosen.main: ids}))[1]
        real = self.real.to(self.leaf.device)[..., None]
        # Not the leaf of those ids: models that count their tokens count no padding, and positions would go too.
        return torch.where(real, self.leaf - self.words + words, self.leaf)

    # --- one chunk after the other ------------------------------------------------------------------------------------

    def chunks(self, rows: int, what: str) -> Iterator[Tensor]:
        """Numbers of rows, as many as go through the model at once, with progress."""
        size = CHUNK_ROWS.get(self.model.device.type, 32)
        with show_progress(rows, what) as progress:
            for rows_now in torch.arange(rows).split(size):
                yield rows_now
                progress.advance(len(rows_now))

    def gathered(self, of: Tensor, variant: Callable[[Tensor], EncodedBatch]) -> Answers:
        return join_answers([self.answered(variant(rows), of[rows]) for rows in self.chunks(len(of), "forwards")])

    def run_shortened(self, keep: Tensor, of: Tensor) -> Answers:
        """Deleted tokens: rows of like length go together, and come back in the order they were asked in."""
        mask = self.encoded.token_mask
        lengths = (keep if mask is None else keep & mask[of]).sum(-1)
        if not bool(lengths.all()):
            raise InputError("Nothing is left of a text when all its tokens are deleted. Use fill='pad' or 'mask'.")
        order = lengths.argsort(stable=True)
        answers = []
        for rows in self.chunks(len(of), "forwards"):
            at = order[rows]
            for group in self.group_by_length(at, lengths):
                varied = perturb.replace_tokens(self.model, self.encoded, keep[group], of[group], "delete")
                answers.append(self.answered(varied, of[group]))
        back = order.argsort()
        return take_answers(join_answers(answers), back)

    def group_by_length(self, rows: Tensor, lengths: Tensor) -> Iterator[Tensor]:
        """All rows, or those of each length by themselves where the model takes no mask."""
        if "attention_mask" in self.encoded.inputs or self.model.takes_attention_mask:
            yield rows
            return
        for length in lengths[rows].unique():
            yield rows[lengths[rows] == length]

    def answered(self, encoded: EncodedBatch, of: Tensor) -> Answers:
        with torch.no_grad():
            output = output_of(self._twin(**encoded.inputs))
        self.spent["forward"] += encoded.batch
        return self.read(encoded, output, of)

    @cached_property
    def _twin(self) -> nn.Module:
        return make_shadow(self.model.module)

    def read(self, encoded: EncodedBatch, output: Tensor, of: Tensor) -> Answers:
        """The target of each row's example in what the model answered."""
        if self.targets[0].label == REPRESENTATION:
            raise UnsupportedModel(
                f"{type(unwrap(self.model.module)).__name__} has no head, so there is no class to follow. Use a method "
                "that knows no class (redistribution, rollout, ...), or open the model with its head."
            )
        if not bool(output.isfinite().all()):
            raise NonFinite("The model's answer to a perturbed input is not finite. Use another fill.")
        logits = read_logits(encoded, output)[0]
        rows, wanted = torch.arange(len(of), device=logits.device), [self.targets[i] for i in of.tolist()]
        score = logits[rows, torch.tensor([t.index for t in wanted], device=logits.device)]
        probabilities = probabilities_of(self.model.module, logits)
        probability = score
        if probabilities is not None:
            probability = probabilities[rows, torch.tensor([t.index for t in wanted], device=logits.device)]
        if any(t.versus is not None for t in wanted):
            at = torch.tensor([t.versus if t.versus is not None else 0 for t in wanted], device=logits.device)
            has = torch.tensor([t.versus is not None for t in wanted], device=logits.device)
            score = score - torch.where(has, logits[rows, at], 0)
        return Answers(score, probability, logits)

    # --- fills --------------------------------------------------------------------------------------------------------

    def check_fill(self, fill: str | None) -> str:
        if fill is None:
            return self.fill
        known = (*(perturb.IMAGE_FILLS if self.is_image else perturb.TEXT_FILLS), "drop")
        if fill not in known:
            kind = "a picture" if self.is_image else "a text"
            raise MethodError(f"fill={fill!r} is not a choice for {kind}. There are: {', '.join(map(repr, known))}.")
        return fill

    def erase_pixels(self, keep: Tensor, of: Tensor, fill: str, seed: int) -> EncodedBatch:
        return perturb.erase_pixels(self.model, self.encoded, self.grid, keep, of, fill, seed)

    def drop_tokens(self, keep: Tensor, of: Tensor) -> Intervention:
        """Nobody attends to the tokens that are gone; what is left of each row is scaled to sum to 1.

        Where nothing is left, nothing is attended to.
        """
        stays = torch.ones(len(of), self.layout.length, dtype=torch.bool)
        stays[:, self.places] = keep | ~self.real[of]
        stays = stays.to(self.model.device)[:, None, None, :]

        def keep_left(_: int, attention: Tensor) -> Tensor:
            if attention.size(-1) != stays.size(-1):
                raise UnsupportedModel('fill="drop" needs the same tokens at every attention.')
            left = attention * stays
            total = left.sum(-1, keepdim=True)
            return torch.where(stays.all(-1, keepdim=True), attention, left / total.masked_fill(total == 0, 1))

        return Intervention(attention=keep_left)


def read_hidden_states(run: Run) -> list[Tensor]:
    """[row token channel] at every block boundary of a run, for `Probe.intervene(look=...)`."""
    states, _ = find_blocks(run.mode)
    return [to_canonical_axes(state.detach(), trace_of(state)) for state in states]


def detach_answers(answers: Answers) -> Answers:
    return Answers(answers.score.detach(), answers.probability.detach(), answers.logits.detach())


def join_answers(parts: list[Answers]) -> Answers:
    if not parts:
        raise MethodError("There are no variants to ask the model about.")
    return Answers(*(torch.cat([getattr(p, name) for p in parts]) for name in ("score", "probability", "logits")))


def take_answers(answers: Answers, rows: Tensor) -> Answers:
    at = rows.to(answers.score.device)
    return Answers(answers.score[at], answers.probability[at], answers.logits[at])
