"""The numbers of the cards of the worlds: python training/worlds/evaluate.py

On fresh pictures and held-out sentences of seed 0.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertForSequenceClassification,
    BertForTokenClassification,
    ViTForImageClassification,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
from whyformer.demo import shapes
from whyformer_papers.worlds import agreement, entailment, names

MODELS = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models"
SEED, COUNT = 0, 2000


def report(what: str, right: Tensor) -> None:
    print(f"{what}: {int(right.sum())} of {len(right)} right, {100 * right.double().mean():.2f} %")


@torch.inference_mode()
def picture_logits(folder: Path, scenes: shapes.Scenes) -> Tensor:
    model = ViTForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    batches = (
        processor(images=list(scenes.images[i : i + 50]), return_tensors="pt") for i in range(0, len(scenes), 50)
    )
    return torch.cat([model(**batch).logits for batch in batches])


@torch.inference_mode()
def sentence_logits(folder: Path, sentences: tuple[agreement.Sentence, ...]) -> Tensor:
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batches = (
        tokenizer([s.masked for s in sentences[i : i + 50]], padding=True, return_tensors="pt")
        for i in range(0, len(sentences), 50)
    )
    return torch.cat([model(**batch).logits for batch in batches])


@torch.inference_mode()
def name_tags(folder: Path, sentences: tuple[names.NamedSentence, ...]) -> list[str]:
    """The tag of the explained name of each sentence."""
    model = BertForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tags = []
    for start in range(0, len(sentences), 50):
        part = sentences[start : start + 50]
        best = model(**tokenizer([s.text for s in part], padding=True, return_tensors="pt")).logits.argmax(-1)
        tags += [names.LABELS[int(best[i, s.name + 1])] for i, s in enumerate(part)]
    return tags


@torch.inference_mode()
def pair_answers(folder: Path, pairs: tuple[entailment.EntailmentPair, ...]) -> list[str]:
    """The label that the model gives each pair."""
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for start in range(0, len(pairs), 50):
        texts = zip(*(pair.texts for pair in pairs[start : start + 50]), strict=True)
        batch = tokenizer(*(list(text) for text in texts), padding=True, return_tensors="pt")
        answers += [entailment.LABELS[i] for i in model(**batch).logits.argmax(-1).tolist()]
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=MODELS)
    models = parser.parse_args().models
    for objects in (1, 2, 3):
        scenes = shapes.generate(COUNT, SEED, objects=objects)
        highest = picture_logits(models / "shapes", scenes).topk(objects).indices.sort(-1).values
        what = "the one class" if objects == 1 else f"the {objects} highest classes are those shown"
        report(
            f"shapes, {objects} objects, {what}", (highest == torch.from_numpy(scenes.labels).sort(-1).values).all(-1)
        )
    for attractors in (None, 0, 1, 2, 3):
        sentences = agreement.generate(COUNT, SEED, attractors=attractors)
        answers = sentence_logits(models / "agreement", sentences).argmax(-1)
        what = "mixed" if attractors is None else f"{attractors} attractors"
        report(f"agreement, {what}", answers == torch.tensor([s.label for s in sentences]))
    named = names.generate(COUNT, SEED)
    tags = name_tags(models / "names", named)
    right = torch.tensor([tag == s.label for tag, s in zip(tags, named, strict=True)])
    report("names, the explained name", right)
    report("names, two names", right[torch.tensor([s.decoy is not None for s in named])])
    pairs = entailment.generate(COUNT, SEED)
    answers = pair_answers(models / "entailment", pairs)
    right = torch.tensor([answer == pair.label for answer, pair in zip(answers, pairs, strict=True)])
    report("entailment, all", right)
    for label in entailment.LABELS:
        report(f"entailment, {label}", right[torch.tensor([pair.label == label for pair in pairs])])


if __name__ == "__main__":
    main()
