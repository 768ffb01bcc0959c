"""Examine the clusters of a run with the model: the tests of `suspicion`, the object, and what happens without it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from whyformer._explain.explain import explain
from whyformer._runs.parts import BulkRow
from whyformer._summary import hiding, suspicion
from whyformer._summary.clusters import Cluster, SampledClass
from whyformer._summary.inputs import InputReader, open_probe, to_array
from whyformer._summary.shares import resample_map, take_positive_shares
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS

NO_COMMON = "its items have no place or word in common"
MOST_TESTED = 24  # clusters


@dataclass(frozen=True, eq=False)
class Examiner:
    """Runs the tests with one model and one seed."""

    reader: InputReader
    tested: int  # items per cluster
    seed: int

    def examine(self, finding: suspicion.Finding, others: Sequence[BulkRow]) -> suspicion.Finding:
        """The finding with its tests. others: items of other classes, in random order."""
        cluster, reader, tested, seed = finding.cluster, self.reader, self.tested, self.seed
        if cluster.region is not None:
            found = hiding.measure_sameness(cluster, others, reader, seed)
            return replace(
                finding,
                hiding=hiding.hide_region(cluster, reader, tested, seed),
                inserting=hiding.paste_region(cluster, others, reader, tested, seed),
                sameness=None if found is None else suspicion.Sameness(*found),
                off_object=self.measure_off_object(cluster),
            )
        return replace(
            finding,
            hiding=hiding.hide_words(cluster, reader, tested, seed),
            inserting=hiding.insert_words(cluster, others, reader, tested, seed),
            sameness=suspicion.Sameness(
                *hiding.measure_fixed_place(cluster, seed), smallest=suspicion.SMALLEST_FIXEDNESS
            ),
        )

    def complete(self, finding: suspicion.Finding) -> suspicion.Finding:
        """A suspicious cluster without the items that look at the region but show something else there.

        And what happens when the region is hidden.
        """
        cluster = finding.cluster
        if cluster.region is None:
            return finding
        alike = hiding.find_alike(hiding.read_region(cluster, cluster.rows, self.reader, len(cluster.members)))
        if len(alike) == len(cluster.members):  # otherwise some could not be read
            finding = replace(finding, cluster=replace(cluster, members=cluster.members[alike]))
        return replace(finding, recovery=self.measure_recovery(finding.cluster))

    # --- masks --------------------------------------------------------------------------------------------------------

    def measure_off_object(self, cluster: Cluster) -> float | None:
        """The mean share of the relevance in the region that is not on the object; None without masks."""
        assert cluster.region is not None
        shares = []
        for row in cluster.drawn_rows[: self.tested]:
            mask = self.reader.load_mask(row) if self.reader.masks else None
            spread = None if mask is None else spread_relevance(row.scores, row.grid, mask.shape)
            if mask is not None and spread is not None:
                held = spread * hiding.enlarge_region(cluster.region, *mask.shape).numpy() * (mask >= 0)
                shares += [1 - float(held[mask == 1].sum() / held.sum())] if held.sum() > 0 else []
        return float(np.mean(shares)) if shares else None

    def measure_on_object(self, rows: Sequence[BulkRow], most: int) -> list[tuple[float, float]]:
        """Of the first rows with a mask: the share of relevance on the object, and the object's share of the image."""
        found: list[tuple[float, float]] = []
        for row in rows:
            if len(found) == most:
                break
            mask = self.reader.load_mask(row)
            share = None if mask is None else share_on_object(row.scores, row.grid, mask)
            if mask is not None and share is not None:
                found.append((share, float((mask == 1).sum() / (mask >= 0).sum())))
        return found

    # --- without the region -------------------------------------------------------------------------------------------

    def measure_recovery(self, cluster: Cluster) -> suspicion.Recovery | None:
        """Predictions and evidence of the cluster's items when its stamp is hidden; None if they cannot be read."""
        model = self.reader.model
        stamp = hiding.find_stamp(cluster, self.reader)
        rows, images = self.reader.load(cluster.drawn_rows, self.tested)
        if stamp is None or not rows:
            return None
        probe = open_probe(model, images, [row.target for row in rows])
        kept = ~torch.from_numpy(stamp).expand(len(rows), *stamp.shape)
        hidden = probe.erase_pixels(kept, torch.arange(len(rows)), hiding.FILL, self.seed)
        predictions = to_array(probe.run_batch(hidden, torch.arange(len(rows))).logits).argmax(1)
        after = [
            replace(row, prediction=index, prediction_name=dict(enumerate(model.labels or ())).get(index))
            for row, index in zip(rows, predictions.tolist(), strict=True)
        ]
        wrong_before, wrong_after = map(suspicion.compute_error_rate, (rows, after))
        objects = self.measure_objects(rows, hidden.inputs[hidden.main])
        return suspicion.Recovery(
            len(rows),
            float(stamp.mean()),
            None if wrong_before is None else 1 - wrong_before,
            None if wrong_after is None else 1 - wrong_after,
            *(objects or (None, None)),
        )

    def measure_objects(self, rows: Sequence[BulkRow], pixels: torch.Tensor) -> tuple[float, float] | None:
        """The mean share of relevance on the object before, and after for the class that is predicted then.

        None without masks, or for a method with settings or of another library.
        """
        if not self.reader.masks or rows[0].method not in METHODS:
            return None
        try:
            explained = explain(self.reader.model, pixels, rows[0].method)
        except WhyformerError:
            return None
        pairs = []
        for i, row in enumerate(rows):
            mask = self.reader.load_mask(row)
            if mask is None:
                continue
            before = share_on_object(row.scores, row.grid, mask)
            after = share_on_object(to_array(explained.scores[i]), row.grid, mask)
            if before is not None and after is not None:
                pairs.append((before, after))
        if not pairs:
            return None
        before, after = np.mean(pairs, axis=0)
        return float(before), float(after)


def share_on_object(scores: np.ndarray | None, grid: tuple[int, int] | None, mask: np.ndarray) -> float | None:
    """The share of positive relevance on the object; ignored pixels count neither way."""
    spread = spread_relevance(scores, grid, mask.shape)
    if spread is None or not (total := float(spread[mask >= 0].sum())):
        return None
    return float(spread[mask == 1].sum()) / total


def spread_relevance(
    scores: np.ndarray | None, grid: tuple[int, int] | None, size: tuple[int, ...]
) -> np.ndarray | None:
    """[height width]: the positive shares, each spread evenly over the pixels of its patch."""
    shares = take_positive_shares(scores) if scores is not None and grid is not None else None
    if shares is None or grid is None:
        return None
    return resample_map(shares.reshape(grid), (size[0], size[1]))


def examine_clusters(
    clusters: Sequence[Cluster], classes: Sequence[SampledClass], examiner: Examiner | None, untested: str
) -> list[suspicion.Finding]:
    """A finding for each cluster; tested if there is an examiner and something to test."""
    others = [[sampled for sampled in classes if sampled.name != cluster.sampled.name] for cluster in clusters]
    pairs = list(zip(clusters, others, strict=True))
    findings = [
        suspicion.Finding(cluster, exclusivity=suspicion.measure_exclusivity(cluster, other))
        for cluster, other in pairs
    ]
    most_promising = sorted(findings, key=promise_of, reverse=True)[:MOST_TESTED]
    examined = []
    for finding, other in zip(findings, others, strict=True):
        if not finding.cluster.has_common:
            examined.append(replace(finding, untested=NO_COMMON))
        elif examiner is None:
            examined.append(replace(finding, untested=untested))
        elif finding not in most_promising:
            examined.append(replace(finding, untested=f"only the {MOST_TESTED} most concentrated clusters are tested"))
        else:
            examined.append(examiner.examine(finding, mix_rows(other)))
    return examined


def promise_of(finding: suspicion.Finding) -> float:
    """What is known before any test: concentration times exclusivity."""
    if not finding.cluster.has_common:
        return -1.0
    return float(np.mean(finding.cluster.shares)) * (finding.exclusivity or 0.0)


def mix_rows(classes: Sequence[SampledClass]) -> list[BulkRow]:
    """One item of each class in turn."""
    longest = max((len(one.rows) for one in classes), default=0)
    return [one.rows[i] for i in range(longest) for one in classes if i < len(one.rows)]
