"""repeatable_engine(): what the rows of a run are computed in, so that they do not depend on where it was stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

from whyformer._engine import engine


@contextmanager
def repeatable_engine() -> Iterator[None]:
    """Inside, no plan of a model is used, whatever was asked for outside."""
    # A plan is learnt in the first calls and its scores may differ from theirs in the last digit, so that the bytes of
    # a shard would depend on how many shards its worker had computed before.
    with engine(plan=False):
        yield
