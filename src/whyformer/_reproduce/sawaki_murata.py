"""Sawaki & Murata, Redistribution of Token-wise Relevance in Transformer Models, JSAI 2025 (4I1-GS-11-03).

The paper shows maps of one photograph of a cat, head by head under four rules, by DINO's ViT-S/16, and has no numbers.
So the rerun is that figure, and a table the paper does not have: the four rules judged on images. What the paper says
in words about them becomes orders that can hold or not:

    rules ii, iii and iv, which use the values, cover the object better than rule i
    the distance between values (iii, iv) can hurt, since values of similar patches converge towards the output:
    ii over iii and ii over iv
"""

from collections.abc import Iterator

from whyformer._explain.redistribution_rules import compare_redistribution
from whyformer._model.loading import open as open_model
from whyformer._reproduce.document import Document, Request, Section
from whyformer._reproduce.generated import make_shape_examples
from whyformer._reproduce.reproduction import measure_table
from whyformer.demo.tour import CAT

SCENES = 40  # generated, if no data is given
PAPER_MODEL = "DINO's ViT-S/16 (facebook/dino-vits16)"


def rerun_sawaki_murata(request: Request) -> Iterator[Section]:
    """The figure of the first image, and the rules judged on all; a model without classes gets only the figure."""
    request.check_complete(PAPER_MODEL)
    if request.data is None:
        yield Section("heads-and-rules", compare_redistribution(open_model("demo/pets"), CAT))
        request = request.take_bundled("demo/shapes", make_shape_examples, SCENES)
    else:
        assert request.model is not None
        yield Section("heads-and-rules", compare_redistribution(request.model, request.data.examples[0].load()))
    assert request.data is not None and request.model is not None
    if request.model.labels and len(request.data) > 1:
        yield measure_table(request, "sawaki-murata-rules")


SAWAKI_MURATA = Document(
    name="sawaki-murata",
    title="Sawaki & Murata: Redistribution of Token-wise Relevance in Transformer Models (JSAI 2025)",
    runs=f"Heads x rules on the bundled cat with demo/pets; the rules judged on {SCENES} scenes with demo/shapes.",
    run=rerun_sawaki_murata,
    tables={"sawaki-murata-rules": rerun_sawaki_murata},
    remark="The paper has no numbers. What it says about the rules in words is compared as orders.",
)
