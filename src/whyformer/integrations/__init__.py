"""Where people already work: training loops, experiment trackers and test suites.

    from whyformer.integrations import TensorBoardTracker, assert_looks_at
    from whyformer.integrations.trainer import ExplainCallback       transformers.Trainer
    from whyformer.integrations.lightning import ExplainCallback     Lightning

No other library is imported before it is used; `pip install whyformer[tensorboard]` and the like install them.
"""

from whyformer.integrations.evidence_share import assert_looks_at, measure_share
from whyformer.integrations.trackers import FolderTracker, MlflowTracker, TensorBoardTracker, Tracker, WandbTracker
from whyformer.integrations.watch import Look, Watch

__all__ = [
    "FolderTracker", "Look", "MlflowTracker", "TensorBoardTracker", "Tracker", "WandbTracker", "Watch",
    "assert_looks_at", "measure_share",
]  # fmt: skip
