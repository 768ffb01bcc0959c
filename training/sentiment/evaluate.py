"""The numbers of the sentiment model's card: python training/sentiment/evaluate.py --data DATA/sst2

DATA/sst2 holds dev.tsv and test.tsv (sentence, tab, 0 or 1). With --imdb DATA, also the held-out fifth of the IMDB
reviews, cut to what the model can read.
"""

import argparse
from pathlib import Path

import torch
from corpus import imdb, sst2
from transformers import AutoTokenizer, BertForSequenceClassification

MODEL = Path(__file__).parents[2] / "demo" / "src" / "whyformer_demo" / "models" / "sentiment"


@torch.inference_mode()
def right(model: BertForSequenceClassification, tokenizer: AutoTokenizer, examples: list[tuple[str, int]]) -> int:
    """How many examples are answered as people did."""
    count = 0
    for start in range(0, len(examples), 64):
        texts, labels = zip(*examples[start : start + 64], strict=True)
        inputs = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        count += int((model(**inputs).logits.argmax(-1) == torch.tensor(labels)).sum())
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder sst2")
    parser.add_argument("--imdb", type=Path, help="the folder that holds imdb/")
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    model = BertForSequenceClassification.from_pretrained(arguments.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    sets = {f"SST-2 {part}": sst2(arguments.data.parent, part) for part in ("dev", "test")}
    if arguments.imdb is not None:
        sets["IMDB, held-out fifth"] = imdb(arguments.imdb, held_out=True)
    for name, examples in sets.items():
        count = right(model, tokenizer, examples)
        print(f"{name}: {count} of {len(examples)} right, {100 * count / len(examples):.2f} %")


if __name__ == "__main__":
    main()
