"""The tour behind `whyformer demo`: what ships, explained in the terminal and on one HTML page."""

from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from torch import Tensor

from whyformer import archive
from whyformer.comparison import Comparison, compare
from whyformer.demo import shapes
from whyformer.explanation import Explanation, explain
from whyformer.loading import open as opened
from whyformer.model import Model
from whyformer.picture import as_picture
from whyformer.show import page
from whyformer.show.page import Section
from whyformer.tokens import Pieces

CAT = Path(__file__).parent / "samples" / "cat.jpg"
SENTENCE = "a gorgeous, witty film, despite its tedious first hour"
AGREEMENT = "the keys to the cabinet near the doors"
PICTURE_METHODS = ("transformer_attribution", "generic_attention", "grad_cam", "rollout", "lrp", "chance")
TEXT_METHODS = ("transformer_attribution", "attcat", "lrp", "gradient_x_input", "rollout", "chance")
LEAD = (
    "Small models trained for this demo, explained by several methods from one forward pass each. chance is random "
    "scores: what looks no better than that row says nothing. Methods disagree; that is why whyformer compares them."
)
NEXT = (
    'whyformer explain "the plot is a mess, but the cast is charming" -M demo/sentiment -m attcat',
    "whyformer compare photo.jpg -M demo/pets",
    "whyformer methods",
)


def tour(out: Path, say: Callable[[str], None]) -> None:
    """Explain what ships; `say` prints, the page goes to `out`."""
    sections = []
    for make in (pets, sentiment, two_shapes, agreement):
        shown, section = make()
        say(shown + "\n")
        sections.append(section)
    archive.write(out, page.page("Why did the transformer say that?", LEAD, sections).encode("utf-8"))
    say(f"The same with colours and numbers: {out}\n\nNow with something of yours:\n")
    for command in NEXT:
        say(f"  {command}")


def pets() -> tuple[str, Section]:
    model = opened("demo/pets")
    found = compare(model, CAT, PICTURE_METHODS)
    target = next(iter(found)).targets[0]
    title = f"demo/pets: a photograph, {target.label} ({target.probability:.0%})"
    seen = as_seen(model, as_picture(CAT))
    figures = [page.photograph(seen, "what the model sees"), *maps(seen, found)]
    return f"1. {title}\n\n{found}", Section(title, "A Vision Transformer for 37 breeds of cats and dogs.", figures)


def sentiment() -> tuple[str, Section]:
    found = compare(opened("demo/sentiment"), SENTENCE, TEXT_METHODS)
    target = next(iter(found)).targets[0]
    title = f"demo/sentiment: a sentence, {target.label} ({target.probability:.0%})"
    section = Section(
        title, "A small BERT. Orange speaks for the answer, blue against it.", list(rows(found)), is_text=True
    )
    return f"2. {title}\n\n{found}", section


def two_shapes() -> tuple[str, Section]:
    """Two objects in one picture: each class must find its own."""
    model = opened("demo/shapes")
    world = shapes.generate(1, seed=21, objects=2)
    picture = Image.fromarray(world.images[0])
    labels = [shapes.CLASSES[i] for i in world.labels[0]]
    figures = [page.photograph(picture, "the picture")]
    said = []
    for label in labels:
        e = explain(model, picture, target=label)
        figures.append(page.overlay(picture, e.map(), e.method, f"why {label}?", signed=e.signed))
        said.append(str(e))
    title = f"demo/shapes: one picture, two classes: {' and '.join(labels)}"
    remark = "A class-specific method looks elsewhere when it is asked about another class."
    return f"3. {title}\n\n" + "\n".join(said), Section(title, remark, figures)


def agreement() -> tuple[str, Section]:
    e = explain(opened("demo/decoder"), AGREEMENT, "attcat", target=" are", versus=" is")
    title = "demo/decoder: why are, rather than is?"
    remark = "A small language model must carry the number of its subject past nouns of another number."
    return f"4. {title}\n\n{e}", Section(title, remark, [row(e.method, e)], is_text=True)


# --- for the page ----------------------------------------------------------------------------------------------------


def as_seen(model: Model, picture: Image.Image) -> Image.Image:
    """The part of the picture that reaches the model."""
    pixels: Tensor = model.encode(picture).inputs["pixel_values"][0]
    mean, deviation = (
        pixels.new_tensor(v)[:, None, None] for v in (model.processor.image_mean, model.processor.image_std)
    )
    levels = ((pixels * deviation + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0)
    seen = Image.fromarray(levels.cpu().numpy())
    return seen.resize((3 * seen.width, 3 * seen.height), Image.Resampling.BICUBIC)


def maps(picture: Image.Image, found: Comparison) -> Iterator[str]:
    for e in found:
        remark = "" if e.class_specific else "(the same for every class)"
        yield page.overlay(picture, e.map(), e.method, remark, signed=e.signed)


def rows(found: Comparison) -> Iterator[str]:
    for e in found:
        yield row(e.method, e)


def row(label: str, e: Explanation) -> str:
    tokens = e.tokens[0]
    assert isinstance(tokens, Pieces)
    return page.words(label, tokens, e.scores[0], signed=e.signed)
