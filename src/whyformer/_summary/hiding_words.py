"""Does what a cluster looks at change the answer? Texts: the words are hidden, and put into texts of other classes.

*Hiding* replaces the tokens of the words (by the mask token where the model has one); the effect is how far the
probability of the class falls, beside hiding as many other tokens of the same text. *Inserting* writes the words into a
text of another class, at the end of the text at which they usually are; the effect is how far the probability of the
cluster's class rises, beside inserting as many other words of the same donor.

*Sameness* asks whether the strongest word is always at the same place: o is the share of texts in which it is at its
most frequent place, counted in words from the start or from the end with one word of tolerance, and e the mean of o
when the word is put at a random place of each text, which also gives the p-value:

$$ s = (o - e) / (1 - e) $$

Words that carry the meaning of a class ("great") occur anywhere in a text; a source tag or a signature does not.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from whyformer._runs.parts import BulkRow
from whyformer._summary.clusters import Cluster
from whyformer._summary.effect import Effect, measure_effect
from whyformer._summary.hiding import DRAWS, choose_recipients
from whyformer._summary.inputs import InputReader, make_probe, to_array
from whyformer._summary.sample import draw_number
from whyformer._summary.word_shares import WordShare, list_word_shares, make_pieces

TOLERANCE = 1  # words
SHUFFLES = 999


def hide_words(cluster: Cluster, reader: InputReader, tested: int, seed: int) -> Effect | None:
    """The fall of the probability when the words are hidden; None without usable texts."""
    rows, texts = reader.load([row for row in cluster.drawn_rows if has_both(row, cluster.words)], tested)
    if not rows:
        return None
    probe = make_probe(reader.model, texts, [row.target for row in rows])
    length = probe.real.size(1)
    keep, of = [], []
    for i, row in enumerate(rows):
        for tokens in choose_tokens(row, cluster.words, seed):
            kept = torch.ones(length, dtype=torch.bool)
            kept[find_offset(probe.real[i], row) + torch.tensor(tokens)] = False
            keep.append(kept)
            of.append(i)
    before = to_array(probe.before.probability)
    after = to_array(probe.keep_only(torch.stack(keep), torch.tensor(of)).probability)
    falls = before[:, None] - after.reshape(len(rows), 1 + DRAWS)
    return measure_effect(falls[:, 0], falls[:, 1:].mean(1), seed)


def has_both(row: BulkRow, words: Sequence[str]) -> bool:
    """Whether a text has some of the words, and at least as many tokens of other words."""
    listed = list_word_shares(row)
    own = sum(len(one.tokens) for one in listed if one.word in words)
    return 0 < own <= sum(len(one.tokens) for one in listed if one.word not in words)


def choose_tokens(row: BulkRow, words: Sequence[str], seed: int) -> list[list[int]]:
    """The tokens of the words, then as many tokens of other words, drawn at random, for each draw."""
    listed = list_word_shares(row)
    own = [token for one in listed if one.word in words for token in one.tokens]
    others = [token for one in listed if one.word not in words for token in one.tokens]
    rng = np.random.default_rng(draw_number(seed, row.id))
    return [own, *(sorted(rng.choice(others, len(own), replace=False).tolist()) for _ in range(DRAWS))]


def find_offset(real: torch.Tensor, row: BulkRow) -> int:
    """How many tokens of padding are before the text; `real` is False at special tokens and padding."""
    special = np.zeros(len(row.tokens or ()), dtype=bool) if row.special is None else np.asarray(row.special)
    return int(torch.nonzero(real)[0, 0]) - int(np.flatnonzero(~special)[0])


# --- inserting --------------------------------------------------------------------------------------------------------


def insert_words(
    cluster: Cluster, others: Sequence[BulkRow], reader: InputReader, tested: int, seed: int
) -> Effect | None:
    """The rise of the class's probability in texts of other classes into which the words are written."""
    donors = [row for row in cluster.drawn_rows if has_both(row, cluster.words)][:tested]
    recipients, texts = reader.load(choose_recipients(cluster, others), len(donors))
    if not recipients:
        return None
    from_end = find_usual_place(cluster)[0] == "end"
    variants = []
    for row, text in zip(donors, texts, strict=False):
        for phrase in choose_phrases(row, cluster.words, seed):
            variants.append(f"{text} {phrase}" if from_end else f"{phrase} {text}")
    target = cluster.sampled.target
    before = to_array(make_probe(reader.model, texts, target).before.probability)
    after = to_array(make_probe(reader.model, variants, target).before.probability)
    rises = after.reshape(len(texts), 1 + DRAWS) - before[:, None]
    return measure_effect(rises[:, 0], rises[:, 1:].mean(1), seed)


def choose_phrases(row: BulkRow, words: Sequence[str], seed: int) -> list[str]:
    """The words as they are written in the text, then as many other words of it, for each draw."""
    listed, written = list_word_shares(row), write_words(row)
    own = [written[i] for i, one in enumerate(listed) if one.word in words]
    others = [written[i] for i, one in enumerate(listed) if one.word not in words]
    rng = np.random.default_rng(draw_number(seed, row.id))
    count = min(len(own), len(others))
    drawn = [[others[i] for i in sorted(rng.choice(len(others), count, replace=False))] for _ in range(DRAWS)]
    return [" ".join(one) for one in (own, *drawn)]


def write_words(row: BulkRow) -> list[str]:
    """The words with their case and punctuation."""
    pieces = make_pieces(row)
    written = []
    for one in list_word_shares(row):
        spans = [span for i in one.tokens if (span := pieces.spans[i])]
        covered = pieces.text[spans[0][0] : spans[-1][1]] if spans and pieces.text is not None else one.word
        written.append(covered.strip())
    return written


# --- place ------------------------------------------------------------------------------------------------------------


def find_usual_place(cluster: Cluster) -> tuple[str, int, float]:
    """From which end, how many words from it, and the share of texts in which the strongest word is there."""
    texts = [cluster.sampled.words[i] for i in cluster.members]
    return find_common_place([find_places(text, cluster.words[:1]) for text in texts], [len(text) for text in texts])


def measure_fixed_place(cluster: Cluster, seed: int) -> tuple[float, float]:
    """How much more often the strongest word is at one place than by chance, and the p-value."""
    texts = [cluster.sampled.words[i] for i in cluster.members]
    texts = [text for text in texts if any(one.word == cluster.words[0] for one in text)]
    lengths = [len(text) for text in texts]
    counts = [sum(one.word == cluster.words[0] for one in text) for text in texts]
    observed = find_common_place([find_places(text, cluster.words[:1]) for text in texts], lengths)[2]
    rng = np.random.default_rng(seed)
    random = np.array([find_common_place(draw_places(lengths, counts, rng), lengths)[2] for _ in range(SHUFFLES)])
    expected = float(random.mean())
    sameness = (observed - expected) / (1 - expected) if expected < 1 else 0.0
    return max(0.0, sameness), float((1 + (random >= observed - 1e-9).sum()) / (1 + SHUFFLES))


def find_places(text: Sequence[WordShare], words: Sequence[str]) -> set[int]:
    return {one.start for one in text if one.word in words}


def draw_places(lengths: Sequence[int], counts: Sequence[int], rng: np.random.Generator) -> list[set[int]]:
    """As many places as the word has in each text, at random."""
    return [set(rng.choice(n, k, replace=False).tolist()) for n, k in zip(lengths, counts, strict=True)]


def find_common_place(places: Sequence[set[int]], lengths: Sequence[int]) -> tuple[str, int, float]:
    """The end, the distance to it in words, and the share of texts that have a place there; ties go to the start."""
    found = []
    for end in ("start", "end"):
        from_end = [
            {n - 1 - place if end == "end" else place for place in one} for one, n in zip(places, lengths, strict=True)
        ]
        counts = Counter(near for one in from_end for near in widen_places(one))
        place, count = min(counts.items(), key=lambda item: (-item[1], item[0]), default=(0, 0))
        found.append((count / max(len(places), 1), end, place))
    share, end, place = max(found, key=lambda item: item[0])
    return end, place, share


def widen_places(places: set[int]) -> set[int]:
    """The places within the tolerance."""
    return {near for place in places for near in range(max(0, place - TOLERANCE), place + TOLERANCE + 1)}
