"""Odd tensors, targets and settings: an error of ours with a code, before or instead of what torch would say."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from conftest import animal
from torch import nn

import whyformer as why
from whyformer.errors import InputError, MethodError, NotCaptured, TargetError

IDS = animal("bert").inputs["input_ids"]
MASK = animal("bert").inputs["attention_mask"]


def make_nested():
    return torch.nested.nested_tensor([IDS[0], IDS[1][:4]], layout=torch.jagged)


def make_quantised():
    return torch.quantize_per_tensor(IDS.float(), 0.1, 0, torch.qint8)


BAD_IDS = {
    "is sparse": lambda: IDS.to_sparse(),
    "is nested": make_nested,
    "is quantised": make_quantised,
    "is complex": lambda: IDS.to(torch.complex64),
    "meta device": lambda: IDS.to("meta"),
    "8-bit floating-point": lambda: IDS.to(torch.float8_e4m3fn),
    "must be integers, got int8. Pass int32 or int64": lambda: IDS.to(torch.int8),
    "must be integers, got bool": lambda: IDS.bool(),
    "is empty": lambda: IDS[:0],
    "must be a tensor, got NoneType": lambda: None,
    "must be a tensor, got list": lambda: IDS.tolist(),
    "must have the shape": lambda: IDS[None],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("message", BAD_IDS)
def test_tensors_that_no_model_takes_are_refused(message):
    bad = BAD_IDS[message]()
    for inputs in ({"input_ids": bad, "attention_mask": MASK}, [{"input_ids": bad}]):
        with pytest.raises(InputError, match=message) as raised:
            why.explain(animal("bert").module, inputs, "rollout")
        assert raised.value.code == "E_TENSOR"


@pytest.mark.parametrize(
    "mask",
    [MASK[0], MASK[None], MASK[:, None], MASK[:2], MASK[:, :-1], MASK.to_sparse(), MASK.to(torch.complex64)],
    ids=["row", "3 axes", "middle axis", "few rows", "short", "sparse", "complex"],
)
@pytest.mark.parametrize("name", ["bert", "gpt2", "encoder"])
def test_masks_of_the_wrong_shape_or_kind_are_refused(name, mask):
    with pytest.raises(InputError, match="attention_mask") as raised:
        why.explain(animal(name).module, {"input_ids": animal(name).inputs["input_ids"], "attention_mask": mask})
    assert raised.value.code == "E_TENSOR"


@pytest.mark.parametrize("inputs", [{}, [{}], [{}, {}]])
@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_an_empty_dictionary_is_refused(name, inputs):
    with pytest.raises(InputError, match="got nothing"):
        why.explain(animal(name).module, inputs)


def test_names_of_inputs_must_be_strings():
    with pytest.raises(InputError, match="must be strings, got 3"):
        why.explain(animal("bert").module, {3: IDS})


@pytest.mark.parametrize("ids", [IDS * 10**6, IDS.double(), IDS.to(torch.int8)], ids=["large", "float", "int8"])
def test_what_a_handmade_model_cannot_embed_is_refused_by_name(ids):
    with pytest.raises(InputError, match="HandmadeGPT cannot run on these inputs: idx") as raised:
        why.explain(animal("gpt").module, {"idx": ids}, "rollout")
    assert raised.value.code == "E_TENSOR"


def test_ids_of_type_bool_of_a_handmade_model_are_refused():
    with pytest.raises(InputError, match="HandmadeGPT cannot run on these inputs: idx bool"):
        why.explain(animal("gpt").module, {"idx": IDS.bool()}, "rollout")


BAD_TARGETS = [
    [[0], [1], [2]], torch.zeros(3, device="meta"), torch.ones(3).to_sparse(), torch.ones(3, 2), torch.tensor(1j),
    object(), b"0", "\ud800", 2**70, len, float("nan"), [b"0", "\ud800", object()], {"a": 1}, True, (), [[]],
    np.array(["x", "y", "z"]), np.array([0.5, 1, 2]), {0}, np.ones((3, 2)), [torch.ones(2)] * 3,
    [torch.tensor(0, device="meta")] * 3,
]  # fmt: skip


@pytest.mark.parametrize("target", BAD_TARGETS, ids=lambda target: re.sub(r" at 0x\w+|\s", "", repr(target))[:40])
@pytest.mark.parametrize("argument", ["target", "versus"])
def test_targets_of_odd_types_are_refused(target, argument):
    with pytest.raises(TargetError) as raised:
        why.explain(animal("bert").module, animal("bert").inputs, "rollout", **{argument: target})
    assert raised.value.code == "E_TARGET"
    str(raised.value).encode()


@pytest.mark.parametrize("value", [torch.tensor(1.0), torch.ones(3), np.float64(0.5), 3, [], {}, "no", len, b"signed"])
@pytest.mark.parametrize("setting", ["stabiliser", "recipe"])
def test_odd_stabilisers_and_recipes_are_refused(setting, value):
    with pytest.raises(MethodError, match=setting) as raised:
        why.explain(animal("bert").module, animal("bert").inputs, "attnlrp", **{setting: value})
    assert raised.value.code == "E_OPTION"


@pytest.mark.parametrize(
    "value", [torch.ones(3), np.ones(2), [[0]], [None], 0.5, "", object(), torch.zeros(2, device="meta"), 99, {}]
)
@pytest.mark.parametrize("setting", ["layers", "heads"])
def test_odd_layers_and_heads_are_refused(setting, value):
    with pytest.raises(MethodError, match=setting[:-1]) as raised:
        why.explain(animal("bert").module, animal("bert").inputs, "rollout", **{setting: value})
    assert raised.value.code == "E_OPTION"


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(2), None, 1, "True"])
@pytest.mark.parametrize(
    ("method", "setting"), [("rollout", "per_layer"), ("lrp", "health"), ("grad_cam", "normalise")]
)
def test_flags_are_true_or_false(method, setting, value):
    with pytest.raises(MethodError, match=f"{setting} must be True or False") as raised:
        why.explain(animal("bert").module, animal("bert").inputs, method, **{setting: value})
    assert raised.value.code == "E_OPTION"


def test_settings_of_a_partial_are_given_by_name():
    with pytest.raises(MethodError, match="Pass its settings by name"):
        why.explain(animal("bert").module, animal("bert").inputs, partial(why.METHODS["rollout"].compute, 1))


@pytest.mark.parametrize("classes", [0.5, "LABEL_0", np.ones(2), object(), True, [], 0, {0}])
def test_odd_numbers_of_classes_are_refused(classes):
    with pytest.raises(TargetError):
        why.explain_classes(animal("bert").module, animal("bert").inputs, ["rollout"], classes=classes)


@pytest.mark.parametrize("keep", [None, 3, "attention", [None], [["attention"]]])
def test_record_refuses_what_is_no_site(keep):
    model = why.open(animal("bert").module)
    with pytest.raises(NotCaptured, match="site"):
        why.record(model, model.encode(animal("bert").inputs), keep=keep)


class Tagger(nn.Module):
    """A module of one's own that says little about what it takes; `fails` is how it fails by itself."""

    def __init__(self, fails=None):
        super().__init__()
        self.words, self.places, self.fails = nn.Embedding(40, 8), nn.Embedding(16, 8), fails
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, ids):
        if self.fails is not None:
            self.fails()
        x = self.words(ids) + self.places.weight[: ids.size(1)]
        batch, length, width = x.shape
        x = x.reshape(batch, length, width)
        return self.head(self.attention(x, x, x)[0].mean(1))


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 1, 1), (1, 2, 3, 4), (2, 20)])
def test_inputs_that_the_operations_of_an_own_module_do_not_take_are_refused(shape):
    with pytest.raises(InputError, match="Tagger cannot run on these inputs: ids int64") as raised:
        why.explain(Tagger().eval(), torch.ones(shape, dtype=torch.long), "rollout", target=0)
    assert raised.value.code == "E_TENSOR" and raised.value.__cause__ is not None


def stop():
    raise RuntimeError("not today")


def insist():
    assert not Tagger, "not today"


@pytest.mark.parametrize("fails", [stop, insist, lambda: {}["a name"], lambda: len(3), lambda: None.shape])
def test_what_an_own_module_raises_itself_is_not_touched(fails):
    with pytest.raises((RuntimeError, AssertionError, KeyError, TypeError, AttributeError)) as raised:
        why.explain(Tagger(fails).eval(), torch.ones(1, 4, dtype=torch.long), "rollout", target=0)
    assert not isinstance(raised.value, why.WhyformerError)
