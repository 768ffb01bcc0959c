"""Join the results of several batches into one."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._plain.tokens import Pieces, Stream, pad_pieces
from whyformer.errors import InputError, MethodError
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation


def join_explanations(parts: Sequence[Explanation]) -> Explanation:
    """Explanations by the same method, one after the other, as one; shorter texts are padded at the end.

    A detail is kept if all parts have it in the same shape.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    length = max(part.scores.shape[1] for part in parts)
    tokens = tuple(pad_pieces(t, length) if isinstance(t, Pieces) else t for part in parts for t in part.tokens)
    if any(len(t) != length for t in tokens):
        raise InputError("Images with different numbers of patches cannot be joined into one explanation.")
    count = sum(map(len, parts))
    return replace(
        first,
        scores=torch.cat([F.pad(part.scores, (0, length - part.scores.shape[1])) for part in parts]),
        tokens=tokens,
        targets=tuple(target for part in parts for target in part.targets),
        names=tuple(name for part in parts for name in part.names),
        pixels=join_tensors([part.pixels for part in parts]),
        special=join_tensors([part.special for part in parts]),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        details=join_details(parts),
        spent={k: sum(part.spent.get(k, 0.0) * len(part) for part in parts) / count for k in first.spent},
        images=tuple(image for part in parts for image in part.images),
        parts=join_parts([part.parts for part in parts]),
    )


def join_parts(parts: Sequence[tuple[Stream, ...]]) -> tuple[Stream, ...]:
    """The streams of all, if only the last one differs in length."""
    if any(streams[:-1] != parts[0][:-1] for streams in parts):
        raise InputError("Images with different grids cannot be joined into one explanation. Explain them one by one.")
    return max(parts, key=lambda streams: streams[-1].stop if streams else 0)


def join_tensors(parts: Sequence[Tensor | None]) -> Tensor | None:
    return None if parts[0] is None else torch.cat([part for part in parts if part is not None])


def join_details(parts: Sequence[Explanation]) -> dict[str, Tensor]:
    shared = [name for name in parts[0].details if all(name in part.details for part in parts)]
    columns = {name: [part.details[name] for part in parts] for name in shared}
    return {name: torch.cat(column) for name, column in columns.items() if len({c.shape[1:] for c in column}) == 1}


def join_comparisons(parts: Sequence[Comparison]) -> Comparison:
    """Comparisons of the same methods, one after the other, as one; keeps the methods that worked on all parts."""
    failures = {label: reason for part in parts for label, reason in part.failures.items()}
    labels = [label for label in parts[0].labels if all(label in part.explanations for part in parts)]
    if not labels:
        raise MethodError(f"No method works on all of these inputs. {next(iter(failures.values()), '')}")
    return Comparison(
        {label: join_explanations([part[label] for part in parts]) for label in labels},
        {label: reason for label, reason in failures.items() if label not in labels},
    )
