"""Environment variables belong to the caller: what an imported library sets is removed again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

OPENMP = "KMP_"  # scikit-learn and threadpoolctl set KMP_DUPLICATE_LIB_OK and KMP_INIT_AT_FORK when they are imported


@contextmanager
def keep_environment() -> Iterator[None]:
    """Remove the OpenMP settings that appear inside.

    Around the import and the first use: the OpenMP library of scikit-learn reads them when it starts.
    """
    before = set(os.environ)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(OPENMP) and name not in before]:
            del os.environ[name]
