"""The gallery: every kind of picture whyformer draws, made from the models that ship.

    python docs/gallery.py          draws docs/images/gallery/* and writes docs/gallery.md

The page shows each picture under the very lines that drew it. They are carried out in order, in an empty folder;
what they save is the picture.
"""

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = DOCS / "images" / "gallery"
WIDEST = 1300  # pixels of a picture on the page

INTRODUCTION = """# Gallery

Every picture here was drawn by the lines above it, from the models and the photograph that ship, by one command:

```text
make gallery
```

White is nothing. Scores with a sign run from blue (against the answer) to orange (for it), with white at zero; scores
without one from white to dark purple. Equal steps of a score are equal steps to the eye, and neither map is red against
green. What the colours end at is written beside them.

The same objects save as `.svg` and `.pdf` with text that can be selected, as `.png`, and as `.html`: one file that
works from disk, in the dark, on paper and without a mouse."""


@dataclass(frozen=True)
class Entry:
    title: str
    remark: str
    code: str
    images: tuple[str, ...]
    alt: str

    def text(self) -> str:
        shown = "\n\n".join(f"![{self.alt}](images/gallery/{on_the_page(name)})" for name in self.images)
        return f"## {self.title}\n\n{self.remark}\n\n```python\n{self.code.strip()}\n```\n\n{shown}"


ENTRIES = (
    Entry(
        "A picture",
        "The photograph with what the model sees of it framed, the map between the middles of its patches, and every "
        "patch as it is.",
        """
import whyformer as why

why.demo.sample("cat.jpg")
vit = why.open("demo/pets")
e = why.explain(vit, "cat.jpg")
e.save("picture.png")
""",
        ("picture.png",),
        "A cat's face, and over it a map that is darkest on the forehead, the nose and the whiskers",
    ),
    Entry(
        "At its own size, with lines of equal score",
        "The map over the picture at the picture's own size and the right way up, whatever the camera noted and the "
        "processor cropped. The lines surround what matters most.",
        """
e.overlay(contours=True).save("overlay.png")
""",
        ("overlay.png",),
        "The same cat in grey with purple patches on its forehead, nose and whiskers, and lines around them",
    ),
    Entry(
        "Methods side by side",
        "Eleven methods from one run of the model. `chance` is random: what looks no better says nothing.",
        """
methods = ["gamma_attribution", "transformer_attribution", "generic_attention", "grad_cam", "rollout", "partial_lrp"]
methods += ["lrp", "attcat", "gradient_x_input", "saliency", "chance"]
c = why.compare(vit, "cat.jpg", methods)
c.save("methods.png")
""",
        ("methods.png",),
        "Eleven maps over the same cat, most of them different",
    ),
    Entry(
        "How far they agree",
        "Rank correlation between every two methods.",
        """
c.draw_agreement().save("agreement.svg")
""",
        ("agreement.svg",),
        "A matrix of numbers between -1 and 1, tinted blue to orange",
    ),
    Entry(
        "Classes side by side",
        "Two objects in one picture. A method that explains a class must look elsewhere when it is asked about the "
        "other; rollout cannot.",
        """
from PIL import Image
from whyformer.demo import shapes

picture = Image.fromarray(shapes.generate(1, seed=21, objects=2).images[0])
why.explain_classes(why.open("demo/shapes"), picture, classes=2).save("classes.png")
""",
        ("classes.png",),
        "A picture with a ring and a circle; most methods find the ring for ring and the circle for circle",
    ),
    Entry(
        "One class rather than another",
        "The likeliest breeds, each explained rather than the strongest of the others.",
        """
methods = ["gamma_attribution", "attnlrp", "gradient_x_input"]
grid = why.explain_classes(vit, "cat.jpg", methods, classes=2, versus=True)
grid.save("contrast.png")
""",
        ("contrast.png",),
        "Maps for Bengal rather than Abyssinian, and the other way round",
    ),
    Entry(
        "Words",
        "Words on the colour of their score; a letter is never cut in two, however the tokenizer cut it.",
        """
bert = why.open("demo/sentiment")
text = "a gorgeous, witty film, despite its tedious first hour"
why.explain(bert, text).save("words.svg")
""",
        ("words.svg",),
        "A sentence; gorgeous and witty are orange, tedious is blue",
    ),
    Entry(
        "Words under several methods",
        "A line a method, each with limits of its own.",
        """
methods = ["libragrad", "attnlrp", "attcat", "gradient_x_input", "rollout", "chance"]
why.compare(bert, text, methods).save("lines.svg")
""",
        ("lines.svg",),
        "The same sentence six times, coloured by six methods",
    ),
    Entry(
        "A pair of sentences",
        "Two texts that a model reads together stand below each other.",
        """
why.explain(bert, [("the cast is charming", "but the plot is a mess")]).save("pair.svg")
""",
        ("pair.svg",),
        "Two sentences, the first with blue and the second with orange words",
    ),
    Entry(
        "Why this word next?",
        "What a language model says next, rather than something else.",
        """
gpt = why.open("demo/decoder")
why.explain(gpt, "the keys to the cabinet near the doors", target=" are", versus=" is").save("next.svg")
""",
        ("next.svg",),
        "A sentence with orange and blue words before the one that is explained",
    ),
    Entry(
        "Everything that was said",
        "Each token of a continuation, explained from all before it. As `.html` the page is one to click through: "
        "choose a token, by mouse or arrow keys, and see why it was said.",
        """
why.explain_generation(gpt, "the keys to the cabinet near the doors", max_new_tokens=4).save("written.svg")
""",
        ("written.svg",),
        "Lines that grow by one word, each with the words that led to the next",
    ),
    Entry(
        "Layer by layer",
        "How an explanation comes about, from the last layer alone to all of them, beside each other and as an "
        "animation.",
        """
from pathlib import Path

e = why.explain(vit, "cat.jpg", "gamma_attribution", per_layer=True)
e.draw_build_up().save("layers.png")
Path("layers.gif").write_bytes(e.animate_build_up())
""",
        ("layers.png", "layers.gif"),
        "Twelve maps over a cat; the eyes appear with the middle layers",
    ),
    Entry(
        "Every head",
        "What the heads of all layers attend to where the answer is read; the same for gradients and relevance.",
        """
inside = why.inspect_attention(bert, text)
inside.draw("attention").save("heads.png")
inside.draw("relevance").save("relevance.png")
""",
        ("heads.png", "relevance.png"),
        "Small squares of colour, layers down and heads across",
    ),
    Entry(
        "Who looks at whom",
        "One layer, the mean of its heads: every token at the left, what it attends to at the right.",
        """
inside.tokens(layer=0).save("links.svg")
""",
        ("links.svg",),
        "Two columns of words joined by lines of different weight",
    ),
    Entry(
        "Charts",
        "Curves with bands, rankings with intervals, distributions: `whyformer.show.charts` draws them from plain "
        "arrays. Here, how the scores of some methods are spread over the patches of the cat.",
        """
from whyformer.show import charts

names = ("rollout", "attcat", "lrp", "chance")
groups = {name: c[name].scores[0] / c[name].scores[0].abs().max() for name in names}
chart = charts.draw_violins(groups, title="Scores of 196 patches", ylabel="score, the largest is 1 or -1", reference=0)
chart.save("scores.svg")
""",
        ("scores.svg",),
        "Four distributions of scores; those of lrp crowd at zero",
    ),
)


def page() -> str:
    """docs/gallery.md, which is only ever written by this file."""
    return "\n\n".join([INTRODUCTION, *(entry.text() for entry in ENTRIES), "Next: [Methods](methods.md)."]) + "\n"


def draw(folder: Path) -> None:
    """Carry out the lines of the page, one entry after the other."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        namespace: dict[str, object] = {}
        for entry in ENTRIES:
            print(entry.title, file=sys.stderr)
            exec(compile(entry.code, "gallery", "exec"), namespace)
    finally:
        os.chdir(before)


def shrunk(source: Path) -> Path:
    """Into the folder of the page: a PNG as a smaller WebP, anything else as it is."""
    from PIL import Image

    target = PICTURES / on_the_page(source.name)
    if target.name == source.name:
        return Path(shutil.copy(source, target))
    with Image.open(source) as picture:
        small = picture.convert("RGB")
        small.thumbnail((WIDEST, 10 * WIDEST), Image.Resampling.LANCZOS)
        small.save(target, quality=85, method=6)
    return target


def on_the_page(name: str) -> str:
    return name.replace(".png", ".webp")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        for name in (name for entry in ENTRIES for name in entry.images):
            shrunk(Path(folder) / name)
    (DOCS / "gallery.md").write_text(page())


if __name__ == "__main__":
    main()
