"""Selected layers and heads, and explanations per layer: by hand on tiny captures, and on models."""

import numpy
import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods._layers_and_heads import Selection, list_selection_settings, resolve_indices


def explain_bert(method, **settings):
    it = animal("bert")
    return why.explain(why.open(it.module), it.inputs, method, target=[0, 1, 2], **settings)


def test_numbers_count_from_either_end():
    assert resolve_indices("layers", 2, 4) == (2,)
    assert resolve_indices("layers", [-1, 0, 3], 4) == (0, 3)
    assert resolve_indices("heads", range(1, 3), 4) == (1, 2)


@pytest.mark.parametrize("wanted", [4, -5, [0, 9], "all", 1.5, []])
def test_indices_out_of_range_are_refused(wanted):
    with pytest.raises(MethodError, match="layer"):
        resolve_indices("layers", wanted, 4)


def test_only_methods_that_read_layers_and_heads_offer_them():
    assert list_selection_settings(("attention", "readout")) == {"layers": None, "per_layer": False, "heads": None}
    assert list_selection_settings(("hidden", "mask")) == {"layers": None, "per_layer": False}
    assert list_selection_settings(("input", "input_grad")) == {}
    with pytest.raises(MethodError, match="no setting 'layers'"):
        explain_bert("gradient_x_input", layers=0)


def test_a_selection_reduces_a_capture():
    attention = torch.arange(3 * 1 * 2 * 1 * 1.0).reshape(3, 1, 2, 1, 1)  # layer batch head query key
    picked = Selection(layers=(0, 2), heads=(1,))
    assert [a.flatten().tolist() for a in picked.of("attention", attention)] == [[1.0], [5.0]]
    assert picked.of("readout", "as it is") == "as it is"
    assert Selection(layers=(1, 2)).of("hidden", [10, 11, 12, 13]) == [11, 12, 13]
    with pytest.raises(MethodError, match="Pass consecutive layers"):
        picked.of("hidden", [10, 11, 12, 13])


def test_rollout_of_later_layers_is_rollout_that_starts_there():
    wanted = explain_bert("rollout", start=1)
    assert torch.equal(explain_bert("rollout", layers=[1, 2]).scores, wanted.scores)
    assert torch.equal(explain_bert("rollout", layers=[-1, -2]).scores, wanted.scores)


def test_raw_attention_of_one_head_is_that_head():
    """The mean over heads is the mean of the maps of single heads."""
    alone = [explain_bert("raw_attention", heads=h).scores for h in range(3)]
    torch.testing.assert_close(torch.stack(alone).mean(0), explain_bert("raw_attention").scores)


@pytest.mark.parametrize("method", ["rollout", "transformer_attribution", "generic_attention", "attcat", "cat"])
def test_the_first_entry_per_layer_is_the_explanation(method):
    e = explain_bert(method, per_layer=True)
    built = e.details["per_layer"]
    assert built.shape == (3, 3, 9)
    torch.testing.assert_close(built[:, 0], e.scores)
    torch.testing.assert_close(built[:, 2], explain_bert(method, layers=2).scores)
    assert e.settings["per_layer"] is True


def test_the_selection_is_saved_with_the_result(tmp_path):
    e = explain_bert("rollout", layers=[0, -1], heads=1, per_layer=True)
    assert e.settings["layers"] == [0, -1]
    assert e.settings["heads"] == 1
    for name in ("e.safetensors", "e.json"):
        e.save(tmp_path / name)
        again = why.load(tmp_path / name)
        assert torch.equal(again.details["per_layer"], e.details["per_layer"])
        assert again.spent == e.spent == {"forward": 1.0}
    assert e[1].details["per_layer"].shape == (1, 2, 9)


def test_passes_through_the_model_are_counted():
    assert explain_bert("rollout").spent == {"forward": 1.0}
    assert explain_bert("gradient_x_input").spent == {"forward": 1.0, "backward": 1.0}
    assert explain_bert("transformer_attribution").spent == {"forward": 1.0, "backward": 1.0, "relevance": 1.0}


@pytest.mark.parametrize("wanted", [range(1, 3), {1, 2}, (1, 2), [torch.tensor(1), numpy.int64(2)]])
def test_a_selection_is_saved_as_plain_numbers(wanted, tmp_path):
    e = explain_bert("rollout", layers=wanted)
    e.save(tmp_path / "e.json")
    assert why.load(tmp_path / "e.json").settings["layers"] == [1, 2]


def test_a_number_of_another_library_is_saved_as_a_number(tmp_path):
    for suffix in ("json", "safetensors"):
        explain_bert("rollout", layers=torch.tensor(1), start=numpy.int64(0)).save(tmp_path / f"e.{suffix}")
        settings = why.load(tmp_path / f"e.{suffix}").settings
        assert (settings["layers"], settings["start"]) == (1, 0)


class Uneven(torch.nn.Module):
    """Two heads, then four."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(30, 12), torch.nn.Linear(12, 3)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(12, n, 24, batch_first=True) for n in (2, 4))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def test_heads_are_counted_in_the_selected_layers():
    model = why.open(Uneven().double().eval())
    ids = torch.tensor([[3, 4, 5, 6]])
    last, fourth = (why.explain(model, ids, "raw_attention", layers=1, heads=h).scores for h in (-1, 3))
    assert torch.equal(last, fourth)
    assert why.explain(model, ids, "rollout", heads=1).settings["heads"] == 1
    with pytest.raises(MethodError, match="layers have 2 to 4 heads"):
        why.explain(model, ids, "rollout", heads=-1)
    with pytest.raises(MethodError, match="no head 3"):
        why.explain(model, ids, "rollout", heads=3)
