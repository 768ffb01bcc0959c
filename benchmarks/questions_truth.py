"""Does an explanation of an answer about an image point at what decides it? Measured where that is known.

    python benchmarks/questions_truth.py [--count 100] [--seed 0] [--methods ...] [--jobs 1] [--model FOLDER] [--write]

`demo/questions` answers a question about one of two objects, with the image before the question. Only right answers are
explained. *image*: the highest patch of the image is on the object asked about (a fifth of the patch or more); *other*:
it is on the other object. *word*: the highest word is the one that names the object, special tokens left out. *but the
last*: the same without the last token, where the answer is read, which many methods score highest. *word, versus*: as
*word*, where the answer is explained against the answer about the other object. *share*: of the image in the total
magnitude, and with a grey image in its place; *grey*: the highest patch of that grey image is where the object would
be. `--write` puts the table into docs/vision-language.md. Intervals: 95 %, bootstrap over questions.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from similarity_truth import END, START, best_position, format_cell, share_on_objects

import whyformer as why
from whyformer_papers.worlds import questions

PAGE = Path(__file__).parents[1] / "docs" / "vision-language.md"
COVERED = 0.2  # of a patch
COLUMNS = ("image", "other", "word", "but the last", "word, versus", "share", "share, grey", "grey")
METHODS = (
    "libragrad attnlrp cp_lrp lrp_epsilon gradient_x_input saliency generic_attention "
    "transformer_attribution gamma_attribution grad_cam attcat rollout raw_attention leave_one_out chance"
).split()
GREY = Image.new("RGB", (questions.SIZE, questions.SIZE), (120, 120, 120))


def measure(method: str, name: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """For each column, one number per question that the model answers right."""
    torch.set_num_threads(1)
    model, scenes, rows = why.open(name), questions.generate(count, seed), []
    for image, masks, question in zip(scenes.images, scenes.masks, scenes.questions, strict=True):
        asked = {"image": Image.fromarray(image), "text": question.text}
        e = why.explain(model, asked, method, target=question.answer)
        if not e.targets[0].predicted:
            continue
        against = why.explain(model, asked, method, target=question.answer, versus=question.decoy)
        grey = why.explain(model, {**asked, "image": GREY}, method, target=question.answer)
        objects = share_on_objects(masks[None, [question.asked, 1 - question.asked]], e.parts[0].grid.rows)[0]
        best, best_grey = (int(one.stream("image").scores[0].argmax()) for one in (e, grey))
        found = (highest_word(e), highest_word(e, leaves_out_last=True), highest_word(against))
        words = [word == question.word for word in found]
        on = [float(objects[0, best] >= COVERED), float(objects[1, best] >= COVERED)]
        rows.append([*on, *words, e.share("image"), grey.share("image"), float(objects[0, best_grey] >= COVERED)])
    return dict(zip(COLUMNS, np.array(rows, dtype=float).T, strict=True))


def highest_word(e: why.Explanation, *, leaves_out_last: bool = False) -> str:
    words = e.stream("words")
    pieces, scores = words.tokens[0], words.scores[0].clone()
    scores[torch.tensor(pieces.special)] = -torch.inf
    if leaves_out_last:
        scores[-1] = -torch.inf
    return pieces.pieces[int(scores.argmax())]


def measure_priors(scenes: questions.AskedScenes, side: int) -> dict[str, dict[str, np.ndarray]]:
    """What needs no model: a blob in the centre, and the position that is right most often."""
    asked = np.array([one.asked for one in scenes.questions])
    share = share_on_objects(scenes.masks, side).numpy()
    blob = side // 2 * side + side // 2
    on = share[:, :, blob] >= COVERED
    index = np.arange(len(asked))
    covered = share[index, asked] >= COVERED
    hits = [[word == one.word for word in one.text.split()] for one in scenes.questions]
    return {
        "centre blob": {"image": on[index, asked].astype(float), "other": on[index, 1 - asked].astype(float)},
        "best fixed position": {
            "image": covered[:, covered.mean(0).argmax()].astype(float),
            "word": best_position(hits).astype(float),
        },
    }


def make_table(rows: dict[str, dict[str, np.ndarray]]) -> str:
    lines = [f"| method | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(format_cell(row.get(column)) for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--model", default="demo/questions")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/vision-language.md")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, np.ndarray]] = {}
    ask = partial(measure, name=arguments.model, count=arguments.count, seed=arguments.seed)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name, row in zip(arguments.methods, pool.map(ask, arguments.methods), strict=True):
            rows[f"`{name}`"] = row
            print(name, {column: format_cell(value) for column, value in row.items()}, flush=True)
    rows = dict(sorted(rows.items(), key=lambda item: -item[1]["image"].mean() - item[1]["word"].mean()))
    rows |= measure_priors(questions.generate(arguments.count, arguments.seed), 6)
    table = make_table(rows)
    print(table)
    if arguments.write:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(before + START + table + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
