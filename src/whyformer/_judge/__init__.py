"""Judge: which method to trust on this model and this data.

    judged = judge(model, "photos/", methods="quick", metrics=["deletion"], out="runs/pets")
    print(judged)                                  a table per metric
    judged.verdict                                 "On this data use ..."

Rows (one per example, method and metric) go to disk batch by batch; the same call resumes an interrupted run.
"""

from whyformer._judge.judgement import Judgement
from whyformer._judge.metric_trust import MetricTrust, judge_metrics
from whyformer._judge.run import judge
from whyformer._judge.table import Line, Table

__all__ = ["Judgement", "Line", "MetricTrust", "Table", "judge", "judge_metrics"]
