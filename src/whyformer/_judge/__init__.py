"""Judge: which method to trust on this model and this data.

    judged = judge(model, "photos/", methods="quick", metrics=["perturbation"], out="runs/pets")
    print(judged)                                  the table and what it says
    judged.verdict                                 "On this data use ..."

One row for each example, method and metric goes to disk as it is made; the same call again goes on where it stopped.
"""

from whyformer._judge.judgement import Judgement, judge
from whyformer._judge.table import Line, Table

__all__ = ["Judgement", "Line", "Table", "judge"]
