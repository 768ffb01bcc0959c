"""The tour behind `whyformer demo`: what ships, explained in the terminal and on one HTML page."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from whyformer._explain.compare import compare
from whyformer._explain.explain import explain
from whyformer._model.loading import open as opened
from whyformer._plain import archive
from whyformer.demo import shapes
from whyformer.results.comparison import Comparison
from whyformer.show import page, report
from whyformer.show.panel import Panel
from whyformer.show.report import Html

CAT = Path(__file__).parent / "samples" / "cat.jpg"
SENTENCE = "a gorgeous, witty film, despite its tedious first hour"
AGREEMENT_PROMPT = "the keys to the cabinet near the doors"
IMAGE_METHODS = ("transformer_attribution", "generic_attention", "grad_cam", "rollout", "lrp", "chance")
TEXT_METHODS = ("transformer_attribution", "attcat", "lrp", "gradient_x_input", "rollout", "chance")
LEAD = (
    "Small models trained for this demo, explained by several methods from one forward pass each. chance is random "
    "scores: what looks no better than that row says nothing. Methods disagree; that is why whyformer compares them."
)
NEXT_COMMANDS = (
    'whyformer explain "the plot is a mess, but the cast is charming" -M demo/sentiment -m attcat',
    "whyformer compare photo.jpg -M demo/pets",
    "whyformer methods",
)


def show_tour(out: Path, say: Callable[[str], None]) -> None:
    """Explain what ships; `say` prints, the page goes to `out`."""
    sections, titles = [], {}
    for number, make in enumerate((explain_pets, explain_sentiment, explain_two_shapes, explain_agreement), 1):
        title, remark, shown, drawn = make()
        say(f"{number}. {title}\n\n{shown}\n")
        titles[f"part-{number}"] = title.partition(":")[0]
        sections.append(report.make_section(title, drawn, remark=remark, anchor=f"part-{number}"))
    made = report.make_page("Why did the transformer say that?", sections, lead=LEAD, contents=titles)
    archive.write_file(out, made.encode("utf-8"))
    say(f"The same with colours and numbers: {out}\n\nNow with something of yours:\n")
    for command in NEXT_COMMANDS:
        say(f"  {command}")


TourStop = tuple[str, str, str, Html]  # title, remark, as printed, as drawn on the page


def explain_pets() -> TourStop:
    found = compare(opened("demo/pets"), CAT, IMAGE_METHODS)
    target = next(iter(found)).targets[0]
    title = f"demo/pets: a photograph, {target.label} ({target.probability:.0%})"
    return (
        title,
        "A Vision Transformer for 37 breeds of cats and dogs.",
        str(found),
        page.make_panel_row(take_first_panels(found)),
    )


def explain_sentiment() -> TourStop:
    found = compare(opened("demo/sentiment"), SENTENCE, TEXT_METHODS)
    target = next(iter(found)).targets[0]
    title = f"demo/sentiment: a sentence, {target.label} ({target.probability:.0%})"
    remark = "A small BERT. Orange speaks for the answer, blue against it."
    return title, remark, str(found), page.make_panel_row(take_first_panels(found))


def explain_two_shapes() -> TourStop:
    """Two objects in one picture: each class must find its own."""
    model = opened("demo/shapes")
    world = shapes.generate(1, seed=21, objects=2)
    picture = Image.fromarray(world.images[0])
    labels = [shapes.CLASSES[i] for i in world.labels[0]]
    found = {f"why {label}?": explain(model, picture, target=label) for label in labels}
    title = f"demo/shapes: one picture, two classes: {' and '.join(labels)}"
    remark = "A class-specific method looks elsewhere when it is asked about another class."
    cases = {question: e.panels()[0] for question, e in found.items()}
    return title, remark, "\n".join(map(str, found.values())), page.make_panel_row(cases)


def explain_agreement() -> TourStop:
    e = explain(opened("demo/decoder"), AGREEMENT_PROMPT, "attcat", target=" are", versus=" is")
    title = "demo/decoder: why are, rather than is?"
    remark = "A small language model must carry the number of its subject past nouns of another number."
    return title, remark, str(e), page.make_panel_row({e.method: e.panels()[0]})


def take_first_panels(found: Comparison) -> dict[str, Panel]:
    """The first example under every method."""
    return {label: e.panels(label)[0] for label, e in found.explanations.items()}
