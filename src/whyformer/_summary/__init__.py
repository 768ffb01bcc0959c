"""What a bulk run found: maps and words per class, where relevance sits, clusters of evidence and their tests."""

from whyformer._summary.comparison import RunComparison, compare_runs
from whyformer._summary.result import BulkSummary
from whyformer._summary.run import summarise_bulk

__all__ = ["BulkSummary", "RunComparison", "compare_runs", "summarise_bulk"]
