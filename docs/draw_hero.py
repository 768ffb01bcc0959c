"""Draws the picture at the top of README: two animals, a sentence, an answer with its passage.

    python docs/draw_hero.py FOLDER       with test.txt and images.zip of the Oxford-IIIT Pet data set

The photographs are named in docs/images/CREDITS.md.
"""

import sys
import zipfile
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

import whyformer as why

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from two_animals import join_photos, read_photo

PHOTOS = {"Maine_Coon_222": "Maine Coon", "english_cocker_spaniel_192": "English Cocker Spaniel"}
SENTENCE = "a gorgeous, witty film, despite its tedious first hour"
PASSAGES = [
    "The Aurora sails under captain Anna. It left in March and carries tea.",
    "The lantern fair is held in Lisbon. It opens in May.",
    "The Orion left in June and is loaded with salt.",
]
QUESTION = "What does the Aurora carry?"
FOR, AGAINST, INK = (0.90, 0.45, 0.10), (0.15, 0.40, 0.75), "#1b1b1f"
OUT = Path(__file__).parent / "images" / "hero.webp"


def shade(score: float, largest: float) -> tuple[float, float, float, float]:
    """Orange for, blue against, stronger with the score."""
    return (*(FOR if score > 0 else AGAINST), 0.75 * abs(score) / largest)


def draw_row_of_words(ax, x: float, y: float, words: list[tuple[str, float]], size: float = 15) -> None:
    """Words on colours, one after the other."""
    largest = max(abs(score) for _, score in words)
    for word, score in words:
        box = {"boxstyle": "round,pad=0.22", "facecolor": shade(score, largest), "edgecolor": "none"}
        drawn = ax.text(x, y, word, fontsize=size, color=INK, bbox=box, va="center")
        ax.figure.canvas.draw()
        x = ax.transAxes.inverted().transform(drawn.get_window_extent())[1][0] + 0.014


def draw_animals(axes, folder: Path) -> None:
    photos = zipfile.ZipFile(folder / "images.zip")
    mosaic = join_photos(*(read_photo(photos, name) for name in PHOTOS), side=280)
    model = why.open("demo/pets")
    axes[0].imshow(mosaic)
    axes[0].set_title("one picture", loc="left", fontsize=13)
    for ax, breed in zip(axes[1:], PHOTOS.values(), strict=True):
        ax.imshow(why.explain(model, mosaic, target=breed).overlay())
        ax.set_title(f"why {breed}?", loc="left", fontsize=11.5, fontweight="bold")
    for ax in axes:
        ax.set_axis_off()


def draw_sentence(ax) -> None:
    e = why.explain("demo/sentiment", SENTENCE)
    words = [(word, score) for word, score in e.words()._pair_scores(0, False)]
    ax.text(0, 0.95, f"why {e.targets[0].label}?", fontsize=13, fontweight="bold", va="top", color=INK)
    draw_row_of_words(ax, 0.01, 0.35, words)


def draw_answer(ax) -> None:
    lm = why.open("demo/reader")
    prompt = why.generate(lm, "\n\n".join([*PASSAGES, f"Question: {QUESTION}\nAnswer:"]))
    cited = {one.text.strip(): one for one in why.cite(lm, prompt, by=PASSAGES)}
    title = f"{QUESTION}  \N{RIGHTWARDS ARROW}  {prompt.answer_text.strip()}"
    ax.text(0, 1.0, title, fontsize=13, fontweight="bold", va="top", color=INK)
    for i, passage in enumerate(PASSAGES):
        one = cited[passage]
        box = {"boxstyle": "round,pad=0.3", "facecolor": shade(max(one.share, 0), 1), "edgecolor": "none"}
        y = 0.62 - 0.31 * i
        ax.text(0.01, y, passage, fontsize=12, va="center", color=INK, bbox=box)
        ax.text(0.78, y, one.role, fontsize=12, va="center", color=INK if one.share > 0.5 else "#60606a")


def main() -> None:
    mpl.use("agg")
    figure = plt.figure(figsize=(9.6, 6.0), facecolor="white")
    grid = figure.add_gridspec(
        3, 3, height_ratios=(6.4, 1.5, 2.3), left=0.02, right=0.98, top=0.95, bottom=0.035, hspace=0.12
    )
    draw_animals([figure.add_subplot(grid[0, i]) for i in range(3)], Path(sys.argv[1]))
    for row, draw in ((1, draw_sentence), (2, draw_answer)):
        ax = figure.add_subplot(grid[row, :])
        ax.set_axis_off()
        draw(ax)
    file = BytesIO()
    figure.savefig(file, dpi=170)
    Image.open(file).convert("RGB").save(OUT, quality=88)
    print(OUT)


if __name__ == "__main__":
    main()
