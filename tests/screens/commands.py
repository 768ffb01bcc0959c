"""The commands that are pictured, with small inputs; they run in a folder that `prepare_folder` fills."""

import csv
import json
import shutil
from pathlib import Path

from screens.results import ALIKE, DEMO, PROMPT, REVIEWS, TEXT

from whyformer.demo import reader
from whyformer_papers.worlds import tracking

COMMANDS = {
    "help": ["--help"],
    "explain-text": ["explain", TEXT, "-M", "demo/sentiment", "-o", "why.html"],
    "explain-image": ["explain", "cat.jpg", "-M", "demo/pets"],
    "compare-text": ["compare", TEXT, "-M", "demo/sentiment"],
    "compare-image": ["compare", "cat.jpg", "-M", "demo/pets", "-m", "rollout", "-m", "attcat", "-m", "chance"],
    "generate": ["generate", PROMPT, "-M", "demo/decoder", "-n", "3"],
    "cite": ["cite", "passages.txt", "-M", "demo/reader"],
    "trace": ["trace", "program.txt", "-M", "demo/tracking", "-n", "30"],
    "similarity": ["similarity", *ALIKE],
    "inspect": ["inspect", TEXT, "-M", "demo/sentiment", "-o", "heads.html"],
    "doctor": ["doctor", "demo/sentiment", "-m", "libragrad", "-m", "rollout", "-m", "vit_cx"],
    "judge": ["judge", "reviews.csv", "-M", "demo/sentiment", "-m", "libragrad", "-m", "rollout"],
    "audit": ["audit", "reviews.csv", "-M", "demo/sentiment", "--samples", "5", "--test", "replacement"],
    "bulk": ["bulk", "reviews.csv", "-M", "demo/sentiment", "-o", "run", "--workers", "1"],
    "bulk-summary": ["bulk-summary", "run"],
    "methods": ["methods"],
    "metrics": ["metrics"],
    "reproduce": ["reproduce"],
    "demo": ["demo"],
    "refused": ["explain", TEXT, "-M", "demo/sentiment", "-m", "rolout"],
}


def prepare_folder(folder: Path) -> None:
    """The files that the commands read."""
    shutil.copy(DEMO / "samples" / "cat.jpg", folder / "cat.jpg")
    asked = reader.generate(1, seed=3)[0]
    (folder / "passages.txt").write_text(asked.text, "utf-8")
    (folder / "program.txt").write_text(tracking.generate(1, seed=0, links=2)[0].prompt, "utf-8")
    with (folder / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *REVIEWS])
    (folder / "chat.json").write_text(json.dumps(asked.messages), "utf-8")
