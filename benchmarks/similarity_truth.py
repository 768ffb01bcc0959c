"""Does an explanation of a similarity point at what makes two inputs alike? Measured where that is known.

    python benchmarks/similarity_truth.py [--pairs 200] [--seed 0] [--methods ...] [--write]

`demo/captions` compares an image of two objects with a caption that names one of them. *image*: the highest patch is on
the named object (a fifth of the patch or more); *other*: it is on the other object. *caption*: the highest word is one
of the two that name the object. `demo/shared-words` compares two sentences with one thing in common. *word*: the
highest word of a sentence is that thing, over both sentences. Special tokens are left out. `--write` puts the table
into docs/similarity.md. Intervals: 95 %, bootstrap over pairs.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import whyformer as why
from whyformer_papers.worlds import captions, shared_words

PAGE = Path(__file__).parents[1] / "docs" / "similarity.md"
START, END = "<!-- truth -->\n", "<!-- /truth -->\n"
COVERED = 0.2  # of a patch
BATCH = 50
COLUMNS = ("image", "other", "caption", "word")


def share_on_objects(masks: np.ndarray, side: int) -> Tensor:
    """[image object patch]: how much of every patch an object covers."""
    size = masks.shape[-1] // side
    tiles = masks.reshape(*masks.shape[:2], side, size, side, size).mean((3, 5))
    return torch.from_numpy(tiles.reshape(*masks.shape[:2], -1))


def highest_word(e: why.Explanation, example: int) -> str:
    return str(e[example].top(1)[0][0])


def measure(
    method: str, scenes: captions.CaptionedScenes, pairs: tuple[shared_words.SentencePair, ...]
) -> dict[str, np.ndarray | str]:
    """For each column, one number per pair, or why the method does not work there."""
    found: dict[str, np.ndarray | str] = {}
    try:
        rows = [measure_captions(method, scenes, slice(i, i + BATCH)) for i in range(0, len(scenes), BATCH)]
        found |= {name: np.concatenate([row[name] for row in rows]) for name in ("image", "other", "caption")}
    except why.WhyformerError as error:
        found |= dict.fromkeys(("image", "other", "caption"), str(error))
    try:
        words = [measure_words(method, pairs[i : i + BATCH]) for i in range(0, len(pairs), BATCH)]
        found["word"] = np.concatenate(words)
    except why.WhyformerError as error:
        found["word"] = str(error)
    return found


def measure_captions(method: str, scenes: captions.CaptionedScenes, part: slice) -> dict[str, np.ndarray]:
    images = [Image.fromarray(image) for image in scenes.images[part]]
    texts = list(scenes.captions[part])
    s = why.explain_similarity(CLIP, images, texts, method, matrix=None)
    share = share_on_objects(scenes.masks[part], s.a.tokens[0].rows)
    best = s.a.scores.argmax(-1)
    on = share[torch.arange(len(best)), :, best] >= COVERED
    named = [highest_word(s.b, i) in captions.words_of(text) for i, text in enumerate(texts)]
    return {"image": on[:, 0].numpy(), "other": on[:, 1].numpy(), "caption": np.array(named)}


def measure_words(method: str, pairs: tuple[shared_words.SentencePair, ...]) -> np.ndarray:
    s = why.explain_similarity(ENCODER, [p.first for p in pairs], [p.second for p in pairs], method, matrix=None)
    return np.array([[highest_word(e, i) == p.shared for e in (s.a, s.b)] for i, p in enumerate(pairs)]).mean(1)


def measure_priors(
    scenes: captions.CaptionedScenes, pairs: tuple[shared_words.SentencePair, ...]
) -> dict[str, dict[str, np.ndarray]]:
    """What needs no model: a blob in the centre, and the position that is right most often."""
    side = 6
    share = share_on_objects(scenes.masks, side)
    centre = np.exp(-((np.arange(side) - (side - 1) / 2) ** 2))
    blob = torch.from_numpy(np.outer(centre, centre).ravel() + 1e-6 * np.arange(side * side)).argmax()
    on = (share[:, :, blob] >= COVERED).numpy()
    hits = [[word in captions.words_of(text) for word in text.split()] for text in scenes.captions]
    things = [[word == p.shared for word in text.split()] for p in pairs for text in (p.first, p.second)]
    return {
        "centre blob": {"image": on[:, 0], "other": on[:, 1]},
        "best fixed position": {"caption": best_position(hits), "word": best_position(things)},
    }


def best_position(hits: list[list[bool]]) -> np.ndarray:
    longest = max(len(row) for row in hits)
    table = np.array([row + [False] * (longest - len(row)) for row in hits])
    return table[:, table.mean(0).argmax()]


def measure_matrix(pairs: tuple[shared_words.SentencePair, ...]) -> np.ndarray:
    """The highest pair of words is the common one, twice."""
    s = why.explain_similarity(ENCODER, [p.first for p in pairs], [p.second for p in pairs], "chance")
    return np.array([s.top(1, example=i)[0][:2] == (p.shared, p.shared) for i, p in enumerate(pairs)])


def format_cell(values: np.ndarray | str | None) -> str:
    if values is None or isinstance(values, str):
        return "-" if values is None else "refused"
    rng = np.random.default_rng(0)
    picked = values[rng.integers(0, len(values), (2000, len(values)))].mean(1)
    low, high = np.quantile(picked, [0.025, 0.975])
    return f"{100 * values.mean():.0f} [{100 * low:.0f}, {100 * high:.0f}]"


def sum_hits(row: dict[str, np.ndarray | str]) -> float:
    """To sort by: the hit rates of the three columns in which more is better."""
    return sum(float(v.mean()) for name, v in row.items() if name != "other" and not isinstance(v, str))


def make_table(rows: dict[str, dict[str, np.ndarray | str]]) -> str:
    lines = ["| method | image | other object | caption | word |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(format_cell(row.get(column)) for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--write", action="store_true", help="put the table into docs/similarity.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scenes = captions.generate(arguments.pairs, arguments.seed)
    pairs = shared_words.generate(arguments.pairs, arguments.seed)
    quick = [name for name, method in why.METHODS.items() if method.is_quick] + ["leave_one_out"]
    rows: dict[str, dict[str, np.ndarray | str]] = {}
    for name in arguments.methods or quick:
        rows[f"`{name}`"] = measure(name, scenes, pairs)
        print(name, {column: format_cell(value) for column, value in rows[f"`{name}`"].items()}, flush=True)

    rows = dict(sorted(rows.items(), key=lambda item: -sum_hits(item[1])))
    rows |= {name: dict(row) for name, row in measure_priors(scenes, pairs).items()}
    rows["matrix by `attnlrp`"] = {"word": measure_matrix(pairs)}
    table = make_table(rows)
    print(table)
    if arguments.write:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(before + START + table + END + rest.partition(END)[2], "utf-8")


CLIP, ENCODER = why.open("demo/captions"), why.open("demo/shared-words")

if __name__ == "__main__":
    main()
