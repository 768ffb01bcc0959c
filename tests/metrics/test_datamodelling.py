"""The linear datamodelling score: by hand, and one call of the model for each ablation."""

import numpy as np
import pytest
import torch
from fake_probe import FakeProbe, picture, text
from scipy.stats import spearmanr
from tiny_text import bert, wordpiece

import whyformer as why
from whyformer._engine.record import record
from whyformer.errors import MetricError
from whyformer.metrics import lds
from whyformer.metrics._removal import find_removable_units
from whyformer.metrics.datamodelling import correlate_defined_ranks, correlate_many_ranks, draw_unit_ablations

EFFECTS = [[3.0, 1.0, -2.0, 0.5, 0.0]]


def test_ranks_by_hand():
    """1, 2, 4, 3 against 1, 2, 3, 4: one pair swapped, 1 - 6 (1 + 1) / (4 x 15). Ties share their mean rank."""
    rising = torch.tensor([10.0, 20.0, 30.0, 40.0])
    assert correlate_defined_ranks(torch.tensor([0.1, 0.2, 0.9, 0.5]), rising) == pytest.approx(0.8)
    assert correlate_defined_ranks(-rising, rising) == pytest.approx(-1)
    tied = torch.tensor([1.0, 1.0, 2.0, 3.0])
    assert correlate_defined_ranks(tied, rising) == pytest.approx(spearmanr(tied, rising).statistic)
    assert np.isnan(correlate_defined_ranks(torch.ones(4), rising)) and np.isnan(
        correlate_defined_ranks(rising, torch.ones(4))
    )


def test_many_rows_are_single_rows():
    generator = torch.Generator().manual_seed(0)
    rows, actual = torch.randn(5, 12, generator=generator), torch.randn(12, generator=generator)
    found = correlate_many_ranks(rows, actual)
    assert found == pytest.approx([spearmanr(row, actual).statistic for row in rows])


def test_effects_that_add_up_have_a_score_of_one():
    e, probe = text(EFFECTS), FakeProbe(EFFECTS, bias=-1.0)
    assert lds(e, probe).value.item() == pytest.approx(1)
    assert lds(text([[-x for x in EFFECTS[0]]]), probe).value.item() == pytest.approx(-1)
    assert lds(picture(EFFECTS[0:1], 1, 5), FakeProbe(EFFECTS, grid=(1, 5))).value.item() == pytest.approx(1)


def test_a_map_without_differences_has_none():
    """A constant map counts the kept units, which is something; zeros say nothing."""
    assert lds(text([[0.0] * 5]), FakeProbe(EFFECTS)).value.isnan().all()
    assert lds(text(EFFECTS), FakeProbe([[0.0] * 5])).value.isnan().all()


def test_random_maps_are_about_zero():
    """The mean over 300 maps on one example; a single one scatters."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(300, 8, generator=generator, dtype=torch.double)
    effects = torch.randn(1, 8, generator=generator, dtype=torch.double).expand(300, -1)
    found = lds(text(maps), FakeProbe(effects)).value
    assert abs(found.mean().item()) < 0.06 and found.std() > 0.2


def test_ablations_are_drawn_for_each_example_and_leave_special_tokens_alone():
    probe = FakeProbe(EFFECTS * 2, fingerprints=(5, 6))
    keep = draw_unit_ablations(find_removable_units(text(EFFECTS * 2), probe), probe, 400, seed=0)
    assert not keep[:, :, [0, -1]].any()  # never among the scores that are summed
    assert abs(keep[:, :, 1:-1].double().mean().item() - 0.5) < 0.03
    assert (keep[0] != keep[1]).any()


@pytest.mark.parametrize("fill", ["mask", "delete"])
def test_the_definition_written_slowly(fill):
    model = why.open(bert(), tokenizer=wordpiece())
    encoded = model.encode(["the film is not good at all !"])
    e = why.explain(model, encoded, "gradient_x_input", target=1)
    probe = record(model, encoded, target=1, keep={"probe"})["probe"]
    keep = draw_unit_ablations(find_removable_units(e, probe), probe, 20, seed=4)[0]
    ids, predicted, actual = encoded.inputs["input_ids"][0], [], []
    for row in keep:
        row = row | torch.tensor(e.tokens[0].special)
        varied = ids[row] if fill == "delete" else torch.where(row, ids, model.tokenizer.mask_token_id)
        with torch.no_grad():
            p = model.module(varied[None]).logits[0].softmax(-1)[1]
        predicted.append(float(e.scores[0][row & ~torch.tensor(e.tokens[0].special)].sum()))
        actual.append(float(torch.log(p / (1 - p))))
    found = lds(e, probe, samples=20, fill=fill, seed=4).value.item()
    assert found == pytest.approx(spearmanr(predicted, actual).statistic, abs=1e-9)


def test_samples_are_checked():
    with pytest.raises(MetricError, match="samples must be"):
        lds(text(EFFECTS), FakeProbe(EFFECTS), samples=1)
