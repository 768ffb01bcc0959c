"""Mixtures of experts: products by expert, against the definition written slowly, and conservation in whole models."""

import pytest
import torch
from families.cases import ModelClass, build_case
from families.checks import measure_loss

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import RECIPES
from whyformer._engine.tracing.composites import split_by_expert
from whyformer._engine.tracing.operations import Operation

EXPERTS = torch.tensor([[[1.0, 0], [0, 1]], [[2.0, 0], [0, 3]], [[0.0, 1], [1, 0]]])  # one matrix for each of three
ROWS = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])


def split(ends: list[int], rows: torch.Tensor = ROWS) -> torch.Tensor | None:
    arguments = {"offs": torch.tensor(ends, dtype=torch.int32)}
    return split_by_expert(Operation("_grouped_mm", torch.nn.functional.linear, (rows, EXPERTS), arguments))


def test_every_row_is_multiplied_by_the_matrix_of_its_expert():
    assert split([1, 3, 4]).tolist() == [[1, 2], [6, 12], [10, 18], [8, 7]]


def test_an_expert_without_rows_takes_none():
    assert split([0, 4, 4]).tolist() == [[2, 6], [6, 12], [10, 18], [14, 24]]


def test_rows_behind_the_last_expert_are_zero():
    assert split([1, 2, 2]).tolist() == [[1, 2], [6, 12], [0, 0], [0, 0]]


def test_matrices_that_depend_on_the_input_are_left_alone():
    operation = Operation(
        "_grouped_mm", torch.matmul, (ROWS, EXPERTS.clone().requires_grad_()), {"offs": torch.tensor([1, 3, 4])}
    )
    assert split_by_expert(operation) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", ["chefer", "attnlrp", "gamma"])
def test_relevance_of_a_mixture_is_conserved(recipe):
    """In float64, by three recipes: what was sent arrives at the embeddings or is absorbed by a named part."""
    case = build_case(ModelClass("causal_lm", "mixtral", "MixtralForCausalLM"))
    case.module.set_experts_implementation("eager")  # grouped products have no float64 on CPU
    model = why.open(case.module.double())
    one = RECIPES[recipe]
    capture = record(
        model, model.encode(case.inputs), keep={"input_relevance"}, target=1, recipes=[one], track_absorbed=True
    )
    assert measure_loss(capture, one) < 1e-6  # the router works in float32
