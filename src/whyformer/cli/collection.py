"""Spare a short process the garbage collection of the libraries it imports.

Importing torch and transformers makes a million objects that live until the process ends. The collector walks over
them again and again while they are made, and once more when the process ends: a quarter of the time of a short command.
"""

import gc

START_UP_OBJECTS = 1_000_000


class Collection:
    """The thresholds of the collector as they were, while it is postponed."""

    usual: tuple[int, int, int] | None = None


def postpone_collection() -> None:
    """Collect only after a million new objects, until `resume_collection`."""
    Collection.usual = gc.get_threshold()
    gc.set_threshold(START_UP_OBJECTS)


def resume_collection() -> None:
    """Collect as usual, except what is there already; does nothing if collection was not postponed."""
    if Collection.usual is not None:
        gc.freeze()
        gc.set_threshold(*Collection.usual)
        Collection.usual = None
