"""Attention against input gradients, layer by layer: written slowly in numpy, and the published log."""

import numpy as np
import pytest
import tiny_text
import torch
from scipy.stats import spearmanr

from whyformer._engine.record import record
from whyformer._model.loading import open as opened
from whyformer.data import Data, Example
from whyformer.errors import InputError
from whyformer_papers.abnar_zuidema import LOGGED, OTHER_LOG, RAW, ROLLOUT, correlate_layers, measure_layers
from whyformer_papers.document import Request, run_document
from whyformer_papers.documents import DOCUMENTS

TEXTS = ("the film is not good", "a good film ! the film", "bad")


@pytest.fixture(scope="module")
def model():
    return opened(tiny_text.bert().double(), tokenizer=tiny_text.wordpiece())


def test_correlations_written_slowly(model):
    text = TEXTS[0]
    capture = record(model, model.encode(text), keep={"attention", "input_grad"})
    gradient = np.sqrt((capture.get("input_grad")[0].detach().numpy() ** 2).sum(-1))
    product, words = None, slice(1, -1)  # without [CLS] and [SEP]
    found = correlate_layers(model, text)
    for place, layer in enumerate(capture.get("attention")):
        raw = layer[0].detach().numpy().mean(0)
        product = (raw + np.eye(len(raw))) / 2 if product is None else (raw + np.eye(len(raw))) / 2 @ product
        for form, matrix in ((RAW, raw), (ROLLOUT, product)):
            slowly = spearmanr(matrix.max(0)[words], gradient[words]).statistic
            assert found[form][place] == pytest.approx(slowly, abs=1e-6)


def test_the_sum_of_the_gradient_that_the_script_takes_is_rounding(model):
    """A LayerNorm follows the embeddings, and it does not change when all features grow by the same number."""
    gradient = record(model, model.encode(TEXTS[0]), keep={"input_grad"}).get("input_grad")[0]
    assert gradient.sum(-1).abs().max() < 1e-12 * gradient.norm(dim=-1).max() * 1e3
    assert gradient.norm(dim=-1).min() > 1e-6


def test_too_few_words_are_undefined(model):
    assert all(np.isnan(values).all() for values in correlate_layers(model, TEXTS[2]).values())


def test_a_table_with_intervals_and_orders(model, tmp_path):
    data = Data("texts", tuple(Example(text, text) for text in TEXTS))
    made = measure_layers(model, data)
    assert made.values[RAW].shape == (3, made.layers) and len(made.orders()) == made.layers
    assert "rollout over raw attention" in made.sentences[0] and "layer 1" in made.to_html()
    made.save(tmp_path / "layers.md")
    made.draw().save(tmp_path / "layers.png")


def test_the_log_beside_its_second_transcription():
    assert [cell.mean for cell in LOGGED.rows[RAW]] == [0.117, 0.091, 0.079, 0.093]
    assert [cell.deviation for cell in LOGGED.rows[ROLLOUT]] == [0.187, 0.205, 0.211, 0.198]
    assert OTHER_LOG.rows == {"flow": (0.102, 0.132, 0.167, 0.148)}


def test_images_are_refused():
    with pytest.raises(InputError, match="needs a model for texts"):
        list(
            DOCUMENTS["abnar-zuidema"].run(
                Request(Data("x", (Example("x", torch.zeros(3, 8, 8)),)), opened("demo/untrained-vit"))
            )
        )


@pytest.mark.slow
def test_it_runs_on_generated_pairs():
    made = run_document(DOCUMENTS["abnar-zuidema"], Request(limit=3))
    assert [section.name for section in made.sections] == ["layers", "layers-figure"]
