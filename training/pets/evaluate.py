"""The numbers of the pets model's card: python training/pets/evaluate.py --data DATA/oxford_pets

DATA/oxford_pets holds images.zip. Every held-out photo of fold.txt goes through the preprocessing that ships with the
model, and through the model in float32. Takes a minute or two on a CPU.
"""

import argparse
import io
import zipfile
from pathlib import Path

import torch
from fold import breed_of, breeds_of_fold, is_cat, read_fold
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, ViTForImageClassification

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "pets"
BATCH = 64


@torch.inference_mode()
def predicted(folder: Path, archive: Path, photos: list[str]) -> Tensor:
    """The breed the model names for each photo."""
    model = ViTForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    answers = []
    with zipfile.ZipFile(archive) as images:
        for start in range(0, len(photos), BATCH):
            names = photos[start : start + BATCH]
            batch = [Image.open(io.BytesIO(images.read(f"{name}.jpg"))).convert("RGB") for name in names]
            answers.append(model(**processor(batch, return_tensors="pt")).logits.argmax(-1))
    return torch.cat(answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder oxford_pets")
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    photos, breeds = sorted(read_fold()[0]), breeds_of_fold()
    label = torch.tensor([breeds.index(breed_of(photo)) for photo in photos])
    cat = torch.tensor([is_cat(breed) for breed in breeds])
    answer = predicted(arguments.model, arguments.data / "images.zip", photos)
    for name, right in (("breed", answer == label), ("cat or dog", cat[answer] == cat[label])):
        count = int(right.sum())
        print(f"{name}: {count} of {len(photos)} held-out photos right, {100 * count / len(photos):.2f} %")


if __name__ == "__main__":
    main()
