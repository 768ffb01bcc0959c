"""The numbers of the card: python training/questions/evaluate.py [--model FOLDER] [--count 1000]

On fresh images and questions of seed 0, beside answers that need no image: the most frequent one, and those of the same
question with the image of another example.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
import whyformer as why
from whyformer_papers.worlds import questions

BATCH = 50


@torch.inference_mode()
def answer(model: why.Model, images: list[Image.Image], texts: list[str]) -> list[str]:
    """The word that the model gives to each question."""
    found: list[str] = []
    for start in range(0, len(texts), BATCH):
        part = slice(start, start + BATCH)
        prompts = [f"{model.joint_processor.image_token} {text}" for text in texts[part]]
        inputs = model.joint_processor(
            images=images[part], text=prompts, padding=True, padding_side="left", return_tensors="pt"
        )
        last = model.module(**inputs).logits[:, -1].argmax(-1)
        found += model.tokenizer.convert_ids_to_tokens(last.tolist())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo/questions")
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, scenes = why.open(arguments.model), questions.generate(arguments.count, seed=0)
    images, texts = [Image.fromarray(image) for image in scenes.images], [one.text for one in scenes.questions]
    truth = [one.answer for one in scenes.questions]
    given, shifted = answer(model, images, texts), answer(model, images[1:] + images[:1], texts)
    frequent = Counter(truth).most_common(1)[0][0]
    is_colour = ["colour" in text for text in texts]
    rows = {
        "questions for a colour": [a == t for a, t, c in zip(given, truth, is_colour, strict=True) if c],
        "questions for a shape": [a == t for a, t, c in zip(given, truth, is_colour, strict=True) if not c],
        "all questions": [a == t for a, t in zip(given, truth, strict=True)],
        "with the image of another question": [a == t for a, t in zip(shifted, truth, strict=True)],
        f"always {frequent!r}": [frequent == t for t in truth],
    }
    for what, right in rows.items():
        print(f"| {what} | {sum(right):,} of {len(right):,} | {100 * sum(right) / len(right):.1f} % |")


if __name__ == "__main__":
    main()
