"""Sawaki & Murata, Redistribution of Token-wise Relevance in Transformer Models, JSAI 2025 (4I1-GS-11-03).

The paper shows maps of one photograph of a cat, head by head under four rules, by DINO's ViT-S/16, and has no numbers.
So the rerun is that figure, and a table the paper does not have: the four rules judged on images. What the paper says
in words about them becomes orders that can hold or not:

    rules ii, iii and iv, which use the values, cover the object better than rule i
    the distance between values (iii, iv) can hurt, since values of similar patches converge towards the output:
    ii over iii and ii over iv

That values converge is measured as well (value_convergence.py), and what each rule and head covers (rule_cover.py).
"""

from collections.abc import Iterator, Sequence

from whyformer._explain.compare import compare_redistribution
from whyformer._model import Model, OneInput
from whyformer._model.loading import open as open_model
from whyformer.demo.tour import CAT
from whyformer.errors import InputError
from whyformer_papers.document import Document, Request, Section
from whyformer_papers.generated import make_shape_examples
from whyformer_papers.reproduction import measure_table
from whyformer_papers.rule_cover import measure_rule_cover
from whyformer_papers.value_convergence import measure_value_convergence

SCENES = 40  # generated, if no data is given
COMPARED = 12  # images whose values are compared, and whose cover is counted
PAPER_MODEL = "DINO's ViT-S/16 (facebook/dino-vits16)"


def rerun_sawaki_murata(request: Request) -> Iterator[Section]:
    """The figure of one image, and how values converge; with masks what is covered, with classes the rules judged."""
    request.check_complete(PAPER_MODEL)
    if request.data is None:
        pets = open_model("demo/pets", device=request.device)
        yield Section("heads-and-rules", compare_redistribution(pets, CAT))
        yield from compare_values(pets, [CAT])
        request = request.take_bundled("demo/shapes", make_shape_examples, SCENES)
    assert request.data is not None and request.model is not None
    few = request.data.sample(min(request.choose_count(COMPARED), len(request.data)))
    images = [example.load() for example in few.examples]
    if request.model.name != "demo/shapes":
        yield Section("heads-and-rules", compare_redistribution(request.model, images[0]))
        yield from compare_values(request.model, images)
    if any(example.mask is not None for example in few.examples):
        yield Section("cover", measure_rule_cover(request.model, few))
    if request.model.labels and len(request.data) > 1:
        yield measure_table(request, "sawaki-murata-rules")


def rerun_rules(request: Request) -> Iterator[Section]:
    """The rules judged, alone."""
    request.check_complete(PAPER_MODEL)
    if request.data is None:
        request = request.take_bundled("demo/shapes", make_shape_examples, SCENES)
    yield measure_table(request, "sawaki-murata-rules")


def rerun_values(request: Request) -> Iterator[Section]:
    """How values converge, alone."""
    request.check_complete(PAPER_MODEL)
    chosen = request.data.sample(request.choose_count(COMPARED)).examples if request.data is not None else ()
    images = [example.load() for example in chosen] or [CAT]
    yield from compare_values(request.model or open_model("demo/pets", device=request.device), images)


def rerun_cover(request: Request) -> Iterator[Section]:
    """What each rule and head covers, alone, on all images given."""
    request.check_complete(PAPER_MODEL)
    if request.data is None:
        request = request.take_bundled("demo/shapes", make_shape_examples, COMPARED)
    assert request.data is not None and request.model is not None
    if not any(example.mask is not None for example in request.data.examples):
        raise InputError("What a rule covers is counted on outlined objects, and no image of the data has a mask.")
    yield Section("cover", measure_rule_cover(request.model, request.data.sample(request.limit)))


def compare_values(model: Model, images: Sequence[OneInput]) -> Iterator[Section]:
    found = measure_value_convergence(model, images)
    yield Section("values", found)
    for name, figure in found.list_figures().items():
        yield Section(name, figure)


SAWAKI_MURATA = Document(
    name="sawaki-murata",
    title="Sawaki & Murata: Redistribution of Token-wise Relevance in Transformer Models (JSAI 2025)",
    runs="Heads x rules and values by layer on the bundled cat with demo/pets; what rules and heads cover, and the "
    f"rules judged, on {SCENES} scenes with demo/shapes.",
    run=rerun_sawaki_murata,
    tables={
        "sawaki-murata-rules": rerun_rules,
        "sawaki-murata-values": rerun_values,
        "sawaki-murata-cover": rerun_cover,
    },
    remark="The paper has no numbers. What it says about the rules in words is compared as orders.",
)
