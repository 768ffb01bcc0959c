r"""Word vectors from unlabelled texts: python -m training.jain_wallace.vectors --texts FILES --out vectors.npz

$$ \mathrm{PPMI}_{wc} = \max\left(0, \ln \frac{P(w, c)}{P(w)\, P_{.75}(c)}\right) \approx U \Sigma V^T $$

over windows of five words to each side, nearer ones counted more, for words that occur three times: Levy, Goldberg &
Dagan, Improving distributional similarity with lessons learned from word embeddings, TACL 2015. The rows of
$U \Sigma^{1/2}$ are scaled to the mean length 1. A file is one text per line, or lines of JSON with "text".
"""

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from whyformer_papers.jain_wallace_models import split_words

NEARNESS = {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.4, 5: 0.33}  # the weight of a word at this distance
LEAST = 3


def read_texts(file: Path) -> list[list[str]]:
    raw = file.read_bytes()
    lines = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8", "ignore").splitlines()
    texts = [json.loads(line)["text"] if line.startswith("{") else line.rsplit("\t", 1)[0] for line in lines]
    return [split_words(text.replace("<br />", " "), letters_only=True) for text in texts]


def count_neighbours(texts: list[list[str]], place: dict[str, int]) -> sp.coo_matrix:
    rows: list[int] = []
    columns: list[int] = []
    weights: list[float] = []
    for words in texts:
        numbers = [place.get(word, -1) for word in words]
        for distance, weight in NEARNESS.items():
            for a, b in zip(numbers, numbers[distance:], strict=False):
                if a >= 0 and b >= 0:
                    rows.append(a)
                    columns.append(b)
                    weights.append(weight)
    counts = sp.coo_matrix((weights, (rows, columns)), shape=(len(place), len(place))).tocsr()
    return (counts + counts.T).tocoo()


def make_vectors(texts: list[list[str]], width: int) -> tuple[list[str], np.ndarray]:
    counts = Counter(word for words in texts for word in words)
    kept = [word for word, count in counts.items() if count >= LEAST]
    near = count_neighbours(texts, {word: i for i, word in enumerate(kept)})
    by_word = np.asarray(near.sum(1)).ravel()
    context = by_word**0.75 / (by_word**0.75).sum()
    information = np.log(near.data / (by_word[near.row] * context[near.col]))
    positive = information > 0
    matrix = sp.csr_matrix(
        (information[positive], (near.row[positive], near.col[positive])), shape=near.shape, dtype=np.float32
    )
    left, sizes, _ = svds(matrix, k=width, rng=0)
    vectors = left * np.sqrt(sizes)
    return kept, (vectors / np.linalg.norm(vectors, axis=1).mean()).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=300)
    settings = parser.parse_args()
    words, vectors = make_vectors([words for file in settings.texts for words in read_texts(file)], settings.width)
    np.savez(settings.out, words=np.array(words), vectors=vectors, scale=np.float32(1))
    print(f"{len(words):,} words, {vectors.shape[1]} components")


if __name__ == "__main__":
    main()
