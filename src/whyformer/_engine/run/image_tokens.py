r"""Which tokens of a vision-language model are computed from which pixels, measured on the model; so for sounds.

The model runs up to the sequence in which features of images stand between embeddings of words, $E_1 \dots E_n$; that
sequence is what depends on both. Attention adds nothing in this run, so the tokens of the vision tower do not mix, and
a pixel reaches the tokens of its own patch only, however patches are merged, pooled or shuffled after the tower.
For each bit $b$ of the number of a token, one backward pass starts at the tokens that have it and one at the others:

    $\nabla_x \sum_{t: t_b = 1} \langle r, E_t \rangle$  and  $\nabla_x \sum_{t: t_b = 0} \langle r, E_t \rangle$

Exactly one of the two is not 0 at a pixel of one token, and says the bit; pixels of several tokens have no owner.
A tower whose features are learned queries (a resampler) gives its tokens no place; that is measured without the cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer._engine.run.foreign_errors import refuse_unsuitable_inputs
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.model_memory import recall
from whyformer._engine.run.shadow import make_shadow
from whyformer._engine.tracing.operations import Argument
from whyformer._model import PIXELS, EncodedBatch, Model, Pictures, box_packed, box_tokens, unwrap
from whyformer._plain.torch_state import neutral_torch, use_device_of_model
from whyformer.errors import UnsupportedModel

MOST_KNOWN = 64
WITHOUT_PLACE = (
    "The tokens of the image are computed from all of it, or where their pixels lie is not known, so they have no "
    "place on it."
)
ENTERS_ELSEWHERE = (
    "The model adds features of the image to later states too (as DeepStack does). Methods that read gradients or "
    "relevance score its tokens alone, so their sums leave that part out; methods that hide pixels include it."
)
ATTENTION = {"scaled_dot_product_attention", "softmax"}


@dataclass(frozen=True, eq=False)
class MeasuredImages:
    """What was measured about the tokens of images: the same for every text with so many of them."""

    marks: Tensor  # their token ids
    owners: Tensor | None  # like the pixel values: the number of the image token that is computed from an entry, or -1
    boxes: Tensor | None  # [image token 5]
    count: int
    enters_elsewhere: bool

    def put_into(self, ids: Tensor, pictures: Pictures) -> Pictures:
        """With the positions of image tokens in these ids."""
        is_image = torch.isin(ids, self.marks)
        at = is_image.nonzero()[:, 0]
        owners = None if self.owners is None else torch.where(self.owners >= 0, at[self.owners.clamp(min=0)], -1)
        boxes = None
        if self.boxes is not None:
            boxes = torch.full((len(ids), 5), torch.nan, dtype=self.boxes.dtype)
            boxes[at] = self.boxes
        return replace(
            pictures, count=self.count, owners=owners, is_image=is_image, boxes=boxes,
            enters_elsewhere=self.enters_elsewhere,
        )  # fmt: skip


class SequenceFound(Exception):
    """Ends a run at the sequence of image features and words."""

    def __init__(self, sequence: Tensor) -> None:
        self.sequence = sequence


class AttentionCut(TorchFunctionMode):
    """Attention adds nothing."""

    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: Sequence[type],
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> Tensor:
        made = func(*args, **(kwargs or {}))
        return torch.zeros_like(made) if getattr(func, "__name__", "") in ATTENTION else made


@neutral_torch()
def locate_image_tokens(model: Model, encoded: EncodedBatch) -> EncodedBatch:
    """The batch with the tokens of its images; others unchanged."""
    if encoded.pictures is None or encoded.pictures.is_image is not None:
        return encoded
    known, ids = recall(model.module, "image tokens"), encoded.inputs["input_ids"][0].cpu()
    shown = [(name, given) for name, given in encoded.inputs.items() if encoded.is_picture(name)]
    shapes = tuple((name, tuple(given.shape)) for name, given in shown)
    small = tuple(tuple(given.flatten().tolist()) for _, given in shown if not given.is_floating_point())
    key = (shapes, small, int((ids == encoded.pictures.placeholder).sum()))
    if key not in known:
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[key] = measure_owners(model, encoded)
    found = known[key].put_into(ids, encoded.pictures)
    assert found.is_image is not None and encoded.special_mask is not None
    has_pixels = torch.ones_like(found.is_image)
    if found.owners is not None:
        has_pixels = torch.zeros_like(found.is_image)
        has_pixels[found.owners[found.owners >= 0].unique()] = True
    special = torch.where(found.is_image, ~has_pixels, encoded.special_mask)
    return replace(encoded, pictures=found, special_mask=special)


def measure_owners(model: Model, encoded: EncodedBatch) -> MeasuredImages:
    """The owner of each entry of the pixel values, and which tokens are of images."""
    assert encoded.pictures is not None
    ids, owners = encoded.inputs["input_ids"][0].cpu(), None
    reached = find_reached(model, encoded, cuts_attention=True)
    if reached is not None and bool(reached.any()) and encoded.pictures.kind == "image":
        owners = find_owners(*run_to_sequence(model, encoded, cuts_attention=True))
    else:
        reached = find_reached(model, encoded, cuts_attention=False)  # sounds overlap in their tokens
    if reached is None:
        raise UnsupportedModel(
            f"{type(unwrap(model.module)).__name__} takes {encoded.pictures.kind}s and words, but no module gets a "
            f"sequence of both: which tokens are those of the {encoded.pictures.kind} is not known."
        )
    if not bool(reached.any()):
        raise UnsupportedModel(
            f"No token of {type(unwrap(model.module)).__name__} depends on {encoded.pictures.medium}."
        )
    is_image = torch.isin(ids, ids[reached].unique())  # also placeholders for line breaks between rows of patches
    boxes = None if owners is None else find_boxes(encoded, owners, len(ids))
    count = encoded.pictures.count if boxes is None else int(boxes[:, 0].nan_to_num(0).max()) + 1
    numbers = is_image.long().cumsum(0) - 1
    return MeasuredImages(
        marks=ids[reached].unique(),
        owners=None if owners is None else torch.where(owners >= 0, numbers[owners.clamp(min=0)], -1),
        boxes=None if boxes is None else boxes[is_image],
        count=count,
        enters_elsewhere=enters_elsewhere(model, encoded),
    )


def enters_elsewhere(model: Model, encoded: EncodedBatch) -> bool:
    """Whether the answer depends on the pixels though the sequence of image features and words stays the same."""
    assert encoded.pictures is not None
    with run_forward(model, encoded, asks_gradient=True) as run:
        sequence, before = run.mode.leaf, run.output.detach()
    medium = encoded.pictures.medium
    moved = replace(encoded, inputs={**encoded.inputs, medium: encoded.inputs[medium].flip(-1)})
    with run_forward(model, moved, asks_gradient=True, starting_at=sequence) as run:
        return not torch.allclose(run.output, before, rtol=1e-4, atol=1e-5 * float(before.abs().max()))


def note_pictures(pictures: Pictures | None) -> tuple[str, ...]:
    """What the scores of image tokens leave out."""
    if pictures is None:
        return ()
    notes = () if pictures.boxes is not None or pictures.medium != PIXELS else (WITHOUT_PLACE,)
    return (*notes, ENTERS_ELSEWHERE) if pictures.enters_elsewhere else notes


def find_boxes(encoded: EncodedBatch, owners: Tensor, length: int) -> Tensor | None:
    """Where each token lies on its image; None if that is not known."""
    assert encoded.pictures is not None
    places = encoded.pictures.find_places()
    if places is not None and places.image.shape[-1] == owners.shape[-1]:
        return box_tokens(places, owners, length)
    grids = next((given for name, given in encoded.inputs.items() if "grid" in name and given.size(-1) == 3), None)
    return None if grids is None else box_packed(grids.cpu(), owners, length)


def find_reached(model: Model, encoded: EncodedBatch, *, cuts_attention: bool) -> Tensor | None:
    """[token]: changes with the pixels; None if there is no sequence of image features and words."""
    assert encoded.pictures is not None
    pixels = encoded.inputs[encoded.pictures.medium]
    moved = pixels + torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).to(pixels)
    other = replace(encoded, inputs={**encoded.inputs, encoded.pictures.medium: moved})
    try:
        ends = [run_to_sequence(model, one, cuts_attention=cuts_attention)[0].detach() for one in (encoded, other)]
    except LookupError:
        return None
    return (ends[0] != ends[1])[0].any(-1).cpu()


def run_to_sequence(model: Model, encoded: EncodedBatch, *, cuts_attention: bool) -> tuple[Tensor, Tensor]:
    """The sequence of image features and words, and the pixels, with a graph from these to it."""
    assert encoded.pictures is not None
    shadow, medium = make_shadow(model.module), encoded.pictures.medium
    pixels = encoded.inputs[medium].detach().clone().requires_grad_()
    inputs = {**encoded.inputs, medium: pixels}
    length, words = encoded.inputs["input_ids"].size(1), []

    def mark_words(_: nn.Module, __: tuple[Argument, ...], embedded: Tensor) -> Tensor:
        words.append(torch.zeros_like(embedded[..., :1, :]).requires_grad_())
        return embedded + words[-1]

    def look(_: nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        for given in (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)):
            is_sequence = given.dim() == 3 and tuple(given.shape[:2]) == (1, length)
            if is_sequence and given.requires_grad and depends_on(given, [pixels, *words]):
                raise SequenceFound(given)

    for part in unwrap(shadow).modules():
        part.register_forward_pre_hook(look, with_kwargs=True)
    find_embeddings(shadow).register_forward_hook(mark_words)
    try:
        with (
            refuse_unsuitable_inputs(model.module, encoded.inputs),
            use_device_of_model(model.device),
            torch.enable_grad(),
        ):
            if cuts_attention:
                with AttentionCut():
                    shadow(**inputs)
            else:
                shadow(**inputs)
    except SequenceFound as found:
        return found.sequence, pixels
    raise LookupError("no module gets a sequence that depends on images and words")


def find_embeddings(shadow: nn.Module) -> nn.Module:
    return unwrap(shadow).get_input_embeddings()  # type: ignore[operator]


def depends_on(tensor: Tensor, leaves: Sequence[Tensor]) -> bool:
    with torch.enable_grad():
        found = torch.autograd.grad(tensor.sum(), leaves, retain_graph=True, allow_unused=True)
    return all(gradient is not None for gradient in found[:1]) and any(g is not None for g in found[1:])


def make_probe(sequence: Tensor) -> Tensor:
    """[token]: a number that depends on each token as a whole."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(sequence.size(-1), generator=generator).to(sequence)
    return (sequence[0] * direction).sum(-1)


def gradient_of(total: Tensor, pixels: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(total, [pixels], retain_graph=True, allow_unused=True)
    return torch.zeros_like(pixels) if gradient is None else gradient


def find_owners(sequence: Tensor, pixels: Tensor) -> Tensor:
    """Like the pixels: the token of each entry; -1 if it reaches none, or several."""
    probe = make_probe(sequence)
    numbers = torch.arange(len(probe), device=probe.device)
    owners = torch.zeros(pixels.shape, dtype=torch.long, device=pixels.device)
    is_one = torch.ones_like(owners, dtype=torch.bool)
    for bit in range(max(len(probe) - 1, 1).bit_length()):
        has_bit = (numbers >> bit) & 1
        one, zero = (gradient_of((probe * side).sum(), pixels) != 0 for side in (has_bit, 1 - has_bit))
        is_one &= one ^ zero
        owners |= one.long() << bit
    return torch.where(is_one, owners, -1).cpu()
