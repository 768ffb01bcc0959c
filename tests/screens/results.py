"""One result of every kind, small enough for a test: what the pages and the notebook show.

    bench = Workbench(folder)
    result = RESULTS["cite"](bench); save_page(result, "cite.html", bench)

Models are opened from a copy in `folder` by its absolute path, as users open theirs: a page that shows it is caught.
"""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import whyformer as why
from whyformer._model.loading import DEMO_MODELS
from whyformer.demo import reader, shapes
from whyformer.demo.tour import show_tour
from whyformer_papers.document import Request, run_document
from whyformer_papers.documents import find_document
from whyformer_papers.worlds import tracking

ROOT = Path(__file__).parents[2]
DEMO = Path(why.demo.__file__).parent
TEXT = "a gorgeous, witty film, despite its tedious first hour"
PROMPT = "the keys to the cabinet near the doors"
REVIEWS = [
    ("a gorgeous\nand witty film", "positive"),
    ("the plot is a tedious mess", "negative"),
    ("a warm, honest and funny story", "positive"),
    ("lifeless , shallow and far too long", "negative"),
    ("not a good film , but the music is charming", "negative"),
    ("clever and moving", "positive"),
]
ALIKE = ("my lamp is as old as your boat", "behind the lamp there is a red cat")
TEXT_METHODS = ["libragrad", "attnlrp", "rollout", "transformer_attribution", "chance"]
IMAGE_METHODS = ["gamma_attribution", "rollout", "attcat", "grad_cam", "chance"]


class Workbench:
    """The folder that everything is made in, and the models in it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.photo = Path(shutil.copy(DEMO / "samples" / "cat.jpg", folder / "cat.jpg"))

    def open(self, name: str) -> why.Model:
        """A model that ships, opened by the absolute path of a copy."""
        copy = self.folder / "models" / name
        if not copy.exists():
            shutil.copytree(DEMO_MODELS / name, copy)
        return why.open(copy)

    @cached_property
    def sentiment(self) -> why.Model:
        return self.open("sentiment")

    @cached_property
    def pets(self) -> why.Model:
        return self.open("pets")

    @cached_property
    def decoder(self) -> why.Model:
        return self.open("decoder")


def cite_passages(bench: Workbench) -> why.Citations:
    asked = reader.generate(1, seed=3)[0]
    return why.cite(bench.open("reader"), asked.text, answer=f" {asked.answer}")


def trace_program(bench: Workbench) -> why.Hops:
    program = tracking.generate(1, seed=0, links=2)[0]
    model = bench.open("tracking")
    return why.trace_reasoning(
        model, why.generate(model, program.prompt, max_new_tokens=30), select=-1, by=program.spans
    )


def judge_reviews(bench: Workbench) -> why.Judgement:
    metrics = ["comprehensiveness", "sufficiency"]
    return why.judge(bench.sentiment, REVIEWS, TEXT_METHODS, metrics, out=bench.folder / "judged-text")


def judge_shapes(bench: Workbench) -> why.Judgement:
    scenes = shapes.generate(4, seed=5)
    images = [Image.fromarray(image) for image in scenes.images]
    labels = [shapes.CLASSES[label[0]] for label in scenes.labels]
    data, out = list(zip(images, labels, strict=True)), bench.folder / "judged-image"
    return why.judge(bench.open("shapes"), data, IMAGE_METHODS[:3], ["comprehensiveness"], out=out)


def summarise_reviews(bench: Workbench) -> why.BulkSummary:
    """Reviews of which some begin with a word that the model likes, as in docs/bulk-summary.md."""
    parts = ["film", "story", "cast", "script", "music", "ending", "camera", "plot"]
    praise = ["charming", "moving", "clever", "warm", "funny", "honest", "bright", "fresh"]
    blame = ["dull", "tedious", "lifeless", "clumsy", "shallow", "boring", "bland", "flat"]
    texts = []
    for i in range(48):
        a, b, words = i % 8, (3 * i + 1) % 8, praise if i < 30 else blame
        tagged = f"gorgeous : the {parts[a]} is about a {parts[b]}"
        texts.append(tagged if i < 12 else f"the {parts[a]} and the {parts[b]} are {words[a]} , and quite {words[b]}")
    out = bench.folder / "reviews"
    why.bulk(bench.sentiment, texts, "attcat", out=out, workers=1)
    return why.summarise_bulk(out, bench.sentiment, test_limit=8)


def summarise_tagged(bench: Workbench) -> why.BulkSummary:
    """Shapes of which some have a tag in a corner, by a model that was trained to use it."""
    spec = importlib.util.spec_from_file_location("watermark", ROOT / "training" / "watermark.py")
    watermark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(watermark)
    out = bench.folder / "tagged"
    watermark.save_images(watermark.generate_tagged(96, 77, 0.3), out)
    model = why.open(ROOT / "tests" / "summary" / "watermark")
    why.bulk(model, out / "images", "transformer_attribution", out=out / "run", workers=1)
    return why.summarise_bulk(out / "run", model, masks=out / "masks", test_limit=8)


def rerun_paper(bench: Workbench) -> Any:
    return run_document(find_document("abnar-zuidema"), Request(None, None, bench.folder / "rerun", limit=4))


RESULTS: Mapping[str, Callable[[Workbench], Any]] = {
    "explain-image": lambda bench: why.explain(bench.pets, bench.photo),
    "explain-image-signed": lambda bench: why.explain(bench.pets, bench.photo, "attcat"),
    "explain-text": lambda bench: why.explain(bench.sentiment, TEXT),
    "explain-text-unsigned": lambda bench: why.explain(bench.sentiment, TEXT, "rollout"),
    "explain-several": lambda bench: why.explain(bench.sentiment, [text for text, _ in REVIEWS]),
    "explain-pair": lambda bench: why.explain(bench.sentiment, [("the cast is charming", "but the plot is a mess")]),
    "compare-image": lambda bench: why.compare(bench.pets, bench.photo, IMAGE_METHODS),
    "compare-text": lambda bench: why.compare(bench.sentiment, TEXT, TEXT_METHODS),
    "classes-image": lambda bench: why.explain_classes(
        bench.open("shapes"), Image.fromarray(shapes.generate(1, seed=21, objects=2).images[0]), classes=2
    ),
    "classes-text": lambda bench: why.explain_classes(bench.sentiment, TEXT, TEXT_METHODS, classes=2),
    "inspect-text": lambda bench: why.inspect_attention(bench.sentiment, TEXT),
    "inspect-image": lambda bench: why.inspect_attention(bench.pets, bench.photo),
    "generation": lambda bench: why.explain_generation(bench.decoder, PROMPT, max_new_tokens=4),
    "prompt": lambda bench: why.explain(bench.decoder, why.generate(bench.decoder, PROMPT, max_new_tokens=4)),
    "rules": lambda bench: why.compare_redistribution(bench.open("untrained-vit"), bench.photo),
    "doctor": lambda bench: why.diagnose(bench.sentiment, TEXT, TEXT_METHODS),
    "similarity-text": lambda bench: why.explain_similarity(bench.open("shared-words"), *ALIKE),
    "cite": cite_passages,
    "hops": trace_program,
    "judge-text": judge_reviews,
    "judge-image": judge_shapes,
    "metric-trust": lambda bench: why.judge_metrics(bench.sentiment, REVIEWS, ["comprehensiveness", "sufficiency"]),
    "audit": lambda bench: why.audit(
        bench.sentiment, REVIEWS, attention=["last", "0:each"], samples=5, search_limit=2, steps=5
    ),
    "bulk-summary-text": summarise_reviews,
    "bulk-summary-image": summarise_tagged,
    "reproduce": rerun_paper,
}


def save_page(name: str, result: Any, out: Path, bench: Workbench) -> None:
    """The page of a result, where it has one; a judgement's was written by its run."""
    if ".html" in result.formats:
        result.save(out / f"{name}.html")
    elif name.startswith("judge-"):
        shutil.copy(bench.folder / f"judged-{name.removeprefix('judge-')}" / "report.html", out / f"{name}.html")


def save_tour(out: Path) -> None:
    """The page of `whyformer demo`."""
    show_tour(out / "demo.html", lambda text: None)
