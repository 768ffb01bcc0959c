"""The tour of `whyformer demo`: the bundled models, explained in the terminal and on one HTML page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from whyformer._explain.compare import compare
from whyformer._explain.explain import explain
from whyformer._model import ImageOrWords, Model
from whyformer._model.loading import open as open_model
from whyformer._plain import archive
from whyformer.demo import shapes
from whyformer.demo.sample_files import SAMPLES
from whyformer.show.blocks import Methods, PageSection, Report
from whyformer.show.page import make_report_page
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible
from whyformer.show.wording import explain_colours

CAT = SAMPLES / "cat.jpg"
QUESTION = "which shape does the green thing have ?"  # about samples/question.png
SENTENCE = "a gorgeous, witty film, despite its tedious first hour"
AGREEMENT_PROMPT = "the keys to the cabinet near the doors"
IMAGE_METHODS = ("gamma_attribution", "generic_attention", "grad_cam", "rollout", "lrp_gamma", "chance")
TEXT_METHODS = ("libragrad", "attnlrp", "attcat", "gradient_x_input", "rollout", "chance")
LEAD = (
    "Small models trained for this demo, explained by several methods. The method chance assigns random scores. "
    "Methods disagree, and one example does not tell which is right: whyformer judge measures it on many. "
    + explain_colours((True, False))
)
NEXT_COMMANDS = (
    'whyformer explain "the cast is charming, the plot a mess" -M demo/sentiment',
    "whyformer compare photo.jpg",
    "whyformer methods",
)


def show_tour(out: Path, print_rendered: Callable[[str], None], device: str | None = None) -> None:
    """Explain the bundled models: print the results with `print_rendered`, and save a page to `out`."""
    sections = []
    for number, visit in enumerate((explain_pets, explain_sentiment, explain_two_shapes, explain_agreement), 1):
        stop = visit(device)
        print_rendered(f"{number}. {make_visible(stop.title)}\n\n{stop.text}\n")
        name = stop.title.partition(":")[0]
        sections.append(PageSection(stop.title, [Methods(stop.panels)], stop.remark, name=name))
    html = make_report_page(Report("Why did the transformer say that?", sections, LEAD))
    archive.write_file(out, html.encode("utf-8"))
    print_rendered("\n  ".join(["Try it on your own inputs:\n", *NEXT_COMMANDS]))


def open_question() -> dict[str, ImageOrWords]:
    """An image of the world that demo/questions knows, with a question about it, for models that read both."""
    with Image.open(SAMPLES / "question.png") as image:
        return {"image": image.copy(), "text": QUESTION}


class TourStop(NamedTuple):
    """One model of the tour."""

    title: str
    remark: str
    text: str  # for the terminal
    panels: dict[str, Panel]  # for the page


def explain_pets(device: str | None) -> TourStop:
    remark = "A Vision Transformer for 37 breeds of cats and dogs."
    return compare_methods(open_model("demo/pets", device=device), "a photograph", CAT, IMAGE_METHODS, remark)


def explain_sentiment(device: str | None) -> TourStop:
    remark = "A small BERT. Orange supports the answer, blue contradicts it."
    return compare_methods(open_model("demo/sentiment", device=device), "a sentence", SENTENCE, TEXT_METHODS, remark)


def compare_methods(model: Model, what: str, example: Path | str, methods: Sequence[str], remark: str) -> TourStop:
    comparison = compare(model, example, methods)
    target = next(iter(comparison)).targets[0]
    title = f"{model.name}: {what}, {target.label} ({target.probability:.0%})"
    panels = {label: explanation.panels(label)[0] for label, explanation in comparison.explanations.items()}
    return TourStop(title, remark, str(comparison), panels)


def explain_two_shapes(device: str | None) -> TourStop:
    """Two objects in one image: the explanation of each class must highlight its own object."""
    model = open_model("demo/shapes", device=device)
    scenes = shapes.generate(1, seed=21, objects=2)
    image = Image.fromarray(scenes.images[0])
    labels = [shapes.CLASSES[i] for i in scenes.labels[0]]
    explanations = {f"why {label}?": explain(model, image, target=label) for label in labels}
    title = f"demo/shapes: one image, two classes: {' and '.join(labels)}"
    remark = "A class-specific method highlights a different object for each class."
    panels = {question: explanation.panels()[0] for question, explanation in explanations.items()}
    return TourStop(title, remark, "\n\n".join(map(str, explanations.values())), panels)


def explain_agreement(device: str | None) -> TourStop:
    """A language model that must ignore the nouns between subject and verb."""
    explanation = explain(open_model("demo/decoder", device=device), AGREEMENT_PROMPT, target=" are", versus=" is")
    title = "demo/decoder: why are, rather than is?"
    remark = "A small language model must remember the number of its subject across nouns of the other number."
    return TourStop(title, remark, str(explanation), {explanation.method: explanation.panels()[0]})
