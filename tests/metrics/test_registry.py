"""The registry of metrics: inputs and settings are read from a signature, presets are named settings."""

import json
from functools import partial

import pytest
import torch
from combined_values import combine_values
from fake_probe import FakeProbe, picture, text
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer.errors import MetricError
from whyformer.metrics import aopc, mass_in_mask
from whyformer.metrics._registry import (
    METRIC_INPUTS,
    METRIC_KINDS,
    METRICS,
    Measurement,
    Metric,
    choose_metric,
    describe_metric,
    find_metric,
    format_metrics,
    list_metrics,
    measure,
)

FACTS = dict(paper="", better="higher", kind="faithfulness", needs_truth=None)


def example(explanation, label, *, steps=3, way="up"):
    """What it says."""


def test_needs_and_settings_are_read_off_the_signature():
    one = describe_metric(example, **FACTS)
    assert one.needs == ("explanation", "label") and one.settings == {"steps": 3, "way": "up"}
    assert one.summary == "What it says." and one.name == "example"


def test_a_metric_that_cannot_be_right_is_refused_where_it_is_written():
    def strange(explanation, weather):
        pass

    with pytest.raises(
        MetricError, match=r"strange\(\) asks for weather; the inputs of a metric are explanation, probe"
    ):
        describe_metric(strange, **FACTS)
    with pytest.raises(MetricError, match="higher"):
        describe_metric(example, **FACTS | {"better": "more"})
    with pytest.raises(MetricError, match="kind"):
        describe_metric(example, **FACTS | {"kind": "beauty"})
    with pytest.raises(MetricError, match="needs_truth='mask' but no parameter of that name"):
        describe_metric(example, **FACTS | {"needs_truth": "mask"})
    with pytest.raises(MetricError, match="sets speed, which is not a setting"):
        describe_metric(example, **FACTS, presets={"paper": {"speed": 1}})


def test_found_by_name_function_and_partial():
    assert find_metric("aopc") == (METRICS["aopc"], {})
    assert find_metric(aopc) == (METRICS["aopc"], {})
    assert find_metric(partial(aopc, fill="pad")) == (METRICS["aopc"], {"fill": "pad"})
    assert find_metric(METRICS["aopc"]) == (METRICS["aopc"], {})
    with pytest.raises(
        MetricError, match=r"No metric 'aopcc'. Did you mean 'aopc'\? Available: agreement, answer_tokens, aopc"
    ):
        find_metric("aopcc")
    with pytest.raises(MetricError, match="is not a metric"):
        find_metric(example)


def test_given_settings_come_before_the_preset_and_the_preset_before_the_defaults():
    chosen = choose_metric(partial(aopc, fill="pad"), {"preset": "released", "sizes": "fractions"})
    assert chosen.settings["absolute"] is True and chosen.settings["sizes"] == "fractions"
    assert chosen.settings["fill"] == "pad" and chosen.settings["seed"] == 0
    assert chosen.preset == "released" and "preset" not in chosen.settings
    assert (
        choose_metric("aopc", {"preset": "paper"}).settings == choose_metric("aopc").settings
    )  # the default is the paper


def test_what_is_not_there_is_refused():
    with pytest.raises(MetricError, match=r"aopc has no setting 'fraction'. Did you mean 'fractions'\?"):
        choose_metric("aopc", {"fraction": 0.1})
    with pytest.raises(MetricError, match=r"no preset 'release'. Did you mean 'released'\? Available: paper, released"):
        choose_metric("aopc", {"preset": "release"})
    with pytest.raises(MetricError, match="aopc needs explanation, probe; missing: probe"):
        measure(choose_metric("aopc"), {"explanation": text([[1.0]])})


def test_a_metric_is_held_to_one_number_an_example():
    e = picture([[1.0] * 4] * 2, 2, 2)
    for wrong in (torch.ones(1, dtype=torch.float64), torch.ones(2), torch.ones(2, 1, dtype=torch.float64)):
        one = Metric("wrong", lambda e, w=wrong: w, ("explanation",), {}, "", "higher", "faithfulness", None)
        with pytest.raises(MetricError, match="one float64 number per example"):
            measure(choose_metric(one), {"explanation": e})
    bare = Metric("bare", lambda e: torch.ones(2).double(), ("explanation",), {}, "", "higher", "sanity", None)
    assert isinstance(measure(choose_metric(bare), {"explanation": e}), Measurement)
    parts = Metric(
        "parts", lambda e: torch.ones(2).double(), ("explanation",), {}, "", "higher", "sanity", None, combine=len
    )
    with pytest.raises(MetricError, match="no parts"):
        measure(choose_metric(parts), {"explanation": e})


def test_the_figure_of_a_data_set():
    """The mean of what is defined; or made of the parts, rows with NaN left out."""
    values = torch.tensor([1.0, float("nan"), 3.0], dtype=torch.float64)
    assert combine_values(METRICS["aopc"], values) == 2.0
    parts = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [3.0, 8.0]], dtype=torch.float64)
    assert combine_values(METRICS["pixel_accuracy"], values, parts) == 0.4
    assert combine_values(METRICS["pixel_accuracy"], values[1:2], parts[1:2]) != 0  # NaN


def test_every_metric_is_listed():
    rows = list_metrics()
    assert [row["name"] for row in rows] == [
        one.name for one in sorted(METRICS.values(), key=lambda m: (METRIC_KINDS.index(m.kind), m.name))
    ]
    said = format_metrics()
    for row in rows:
        assert f"\n  {row['name']}\n    {row['summary']}\n    {row['better']} is better" in said
    assert [line for line in said.split("\n") if line and not line.startswith(" ")] == list(METRIC_KINDS)
    assert all(set(row["needs"]) <= set(METRIC_INPUTS) for row in rows)


def test_the_command_says_the_same():
    said = CliRunner().invoke(app, ["metrics"])
    assert said.exit_code == 0 and said.stdout == format_metrics() + "\n"
    rows = json.loads(CliRunner().invoke(app, ["metrics", "--json"]).stdout)
    assert [row["name"] for row in rows] == [row["name"] for row in list_metrics()]


def test_a_registered_function_is_still_a_function():
    assert mass_in_mask(picture([[1.0, 0.0, 0.0, 0.0]], 2, 2), [[[1, 0], [0, 0]]]).tolist() == [1.0]
    assert isinstance(aopc(text([[1.0]]), FakeProbe([[1.0]])), Measurement)
