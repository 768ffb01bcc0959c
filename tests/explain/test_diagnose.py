"""The doctor: what was found, which methods work, and what the exit status is."""

import json

import numpy as np
import pytest
import tiny_text
import torch
import transformers as hf
from torch import nn
from typer.testing import CliRunner

import whyformer as why
from whyformer import cli
from whyformer._explain import diagnose as doctor
from whyformer.errors import InputError, MethodError
from whyformer.results.diagnosis import Diagnosis, MethodCheck
from whyformer.show.terminal import Screen

HALF = ("rollout", "gradient_x_input", "leave_one_out", "attnlrp", "lrp", "libragrad", "vit_cx")
SOME = ("rollout", "attnlrp", "leave_one_out", "chance", "vit_cx")


@pytest.fixture(scope="module")
def classifier():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())


@pytest.fixture(scope="module")
def headless():
    return why.open(hf.BertModel(tiny_text.bert().config).double().eval())


class NearestPrototype(nn.Module):
    """Classifies by the distance to a prototype of each class, for which there is no relevance rule."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bert = hf.BertModel(tiny_text.bert().config)
        self.prototypes = nn.Parameter(torch.randn(3, 24))

    def forward(self, input_ids, attention_mask=None):
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        return -torch.cdist(states[:, 0], self.prototypes)


@pytest.fixture(scope="module")
def prototypes():
    return why.open(NearestPrototype().double().eval(), tokenizer=tiny_text.wordpiece())


@pytest.fixture(scope="module")
def diagnosis(classifier):
    return why.diagnose(classifier, "the film is not good", SOME)


def test_says_what_was_found(diagnosis):
    assert {name: diagnosis.found[name] for name in ("class", "attention", "heads", "blocks", "readout", "tokens")} == {
        "class": "BertForSequenceClassification",
        "attention": "2 sites, fused",
        "heads": "3 per site",
        "blocks": "2",
        "readout": "token 0 ([CLS])",
        "tokens": "7, 2 special ([CLS], [SEP])",
    }
    assert diagnosis.found["task"] == "one of 3 classes: negative, neutral, positive"
    assert diagnosis.found["input"] == "texts, at most 16 tokens"
    assert diagnosis.found["precision"].startswith("float64 (") and diagnosis.found["device"] == "cpu"
    assert diagnosis.found["default method"] == "libragrad"
    explained = why.explain(tiny_text_model(), "the film is not good", "rollout").targets[0]
    assert diagnosis.found["target"].startswith(f"{explained.label}, ")


def tiny_text_model():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece())


def test_a_method_for_images_does_not_count_for_a_text(diagnosis):
    assert diagnosis["vit_cx"].state == "does not apply" and diagnosis["vit_cx"].code == "E_METHOD"
    assert diagnosis.list_methods("works") == [*SOME[:4]]
    assert diagnosis.verdict == "All 4 methods work." and diagnosis.exit_code == 0


def test_costs_are_measured(diagnosis):
    for name in SOME[:4]:
        check = diagnosis[name]
        assert check.seconds > 0 and check.forwards == pytest.approx(check.seconds / diagnosis.seconds)
        assert check.memory is None or check.memory >= 0
    assert diagnosis["leave_one_out"].spent == {
        "forward": 7.0
    }  # the text, the text again for the probe, and once without each word
    assert diagnosis["chance"].reads_model is False and diagnosis["rollout"].reads_model


@pytest.fixture(scope="module")
def half(prototypes):
    return why.diagnose(prototypes, None, HALF)


def test_a_model_on_which_some_methods_are_refused(half):
    assert half.list_methods("works") == [*HALF[:3]] and half.list_methods("refused") == [*HALF[3:6]]
    assert half["lrp"].code == "E_MODEL_OPERATION" and "No relevance rule for cdist" in half["lrp"].reason
    assert half.verdict == "3 of 6 methods work; 3 refused." and half.exit_code == 6
    assert half.group_reasons()["E_MODEL_OPERATION", half["lrp"].reason] == ["attnlrp", "lrp", "libragrad"]
    assert str(half).count("No relevance rule for cdist") == 1 and "attnlrp, lrp, libragrad [E_MODEL" in str(half)


def test_what_is_reported_is_what_explain_does(prototypes, half):
    sample = doctor.make_sample_input(prototypes)
    for check in half:
        if check.state == "works":
            why.explain(prototypes, sample, check.method)
        else:
            with pytest.raises(why.WhyformerError) as refusal:
                why.explain(prototypes, sample, check.method)
            assert refusal.value.code == check.code and str(refusal.value) == check.reason


def test_a_model_on_which_nothing_works():
    d = why.diagnose(nn.Sequential(nn.Linear(3, 4)), torch.ones(1, 2, 3), ["rollout", "raw_attention"])
    assert d.exit_code == 7 and d.verdict == "No method works; 2 refused."
    assert d.found["attention"] == "none"


def test_only_the_control_works_is_nothing_works():
    d = make_diagnosis(MethodCheck("chance", "works", reads_model=False), MethodCheck("lrp", "refused", "E", "no"))
    assert d.exit_code == 7 and d.verdict == "No method works; 1 refused."


def make_diagnosis(*checks):
    return Diagnosis("m", {"class": "A"}, checks, 0.1, 10, "a machine", {"torch": "2"}, ("a note",))


def test_one_method_that_crashes_stops_nothing(classifier, monkeypatch):
    """A bug in a method, and memory that runs out: both are recorded, and the next method is tried."""
    errors = {"rollout": ValueError("a\nbug"), "attnlrp": torch.OutOfMemoryError("too big")}
    real = doctor.explain_encoded

    def break_some(model, encoded, call, target):
        if call is not None and call.method.name in errors:
            raise errors[call.method.name]
        return real(model, encoded, call, target)

    freed = []
    monkeypatch.setattr(doctor, "explain_encoded", break_some)
    monkeypatch.setattr(doctor, "free_memory", lambda: freed.append(True))  # collecting garbage takes long
    d = why.diagnose(classifier, "the film", SOME[:3])
    assert (d["rollout"].state, d["rollout"].code, d["rollout"].reason) == ("failed", "E_INTERNAL", "ValueError: a bug")
    assert (d["attnlrp"].state, d["attnlrp"].code) == ("failed", "E_MEMORY")
    assert d["leave_one_out"].state == "works" and d.exit_code == 6
    assert d.verdict == "1 of 3 methods work; 2 failed." and len(freed) == 1


def test_a_model_that_fails_is_diagnosed_too():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no such thing")

    d = why.diagnose(Broken(), torch.ones(1, 2, 3), SOME[:2])
    assert d.exit_code == 7 and d.seconds is None
    assert "no such thing" in d.found["forward pass"]


def test_small_budgets_are_named_and_can_be_turned_off(classifier):
    small = why.diagnose(classifier, "the film", ["smooth_grad"])
    assert small["smooth_grad"].settings == {"samples": 4} and "With a small budget" in str(small)
    full = why.diagnose(classifier, "the film", ["smooth_grad"], full=True)
    assert full["smooth_grad"].settings == {} and "With a small budget" not in str(full)
    assert full["smooth_grad"].spent["backward"] > small["smooth_grad"].spent["backward"]


def test_the_model_is_unchanged(classifier):
    before = {name: value.clone() for name, value in classifier.module.state_dict().items()}
    why.diagnose(classifier, "the film", SOME[1:3])
    assert all(torch.equal(value, before[name]) for name, value in classifier.module.state_dict().items())
    assert not any(module._forward_hooks for module in classifier.module.modules())


def test_every_format(diagnosis, tmp_path):
    for suffix in diagnosis.formats:
        diagnosis.save(tmp_path / f"d{suffix}")
    saved = json.loads((tmp_path / "d.json").read_text())
    assert saved["exit_code"] == 0 and saved["checks"][0]["method"] == "rollout" and saved["found"]["blocks"] == "2"
    assert "All 4 methods work." in (tmp_path / "d.html").read_text()
    text = diagnosis.render(Screen(width=100, colours=None))
    assert "rollout" in text and "All 4 methods work." in text and "vit_cx [E_METHOD]" in text
    assert "All 4 methods work" in repr(diagnosis) and "rollout" in diagnosis.to_html()


def test_untrusted_names_are_escaped():
    d = make_diagnosis(MethodCheck("lrp", "refused", "E", "<script>\x1b[31m"))
    assert "<script>" not in d.to_html() and "\x1b" not in str(d)


def test_wrong_arguments(classifier):
    with pytest.raises(MethodError, match=r"No method 'rolout'. Did you mean 'rollout'"):
        why.diagnose(classifier, "the film", ["rolout"])
    with pytest.raises(InputError, match=r"takes tensors of a shape that is not known here. Pass an input"):
        why.diagnose(nn.Linear(3, 4))
    with pytest.raises(InputError, match=r"'lrp' was not tried. Tried: rollout"):
        why.diagnose(classifier, "the film", ["rollout"])["lrp"]


TASKS = {
    hf.BertModel: ("a representation of the input (24 channels): the model has no head", "the representation"),
    hf.BertForMaskedLM: ("the token at a mask, of 20", "at the mask"),
    hf.BertForTokenClassification: ("a class for every token, of 3", "at '"),
    hf.GPT2LMHeadModel: ("the next token, of 400", "'"),
}


@pytest.mark.parametrize("family", TASKS, ids=lambda family: family.__name__)
def test_the_task_is_what_the_model_answers(family):
    if family is hf.GPT2LMHeadModel:
        model = why.open(tiny_text.gpt2(), tokenizer=tiny_text.byte_pairs())
    else:
        model = why.open(family(tiny_text.bert().config).double().eval(), tokenizer=tiny_text.wordpiece())
    d = why.diagnose(model, None, ["rollout"])
    task, target = TASKS[family]
    assert d.found["task"] == task and target in d.found["target"] and d.exit_code == 0


@pytest.mark.parametrize("kind", ["image", "pixels", "ids"])
def test_an_input_is_made_if_none_is_given(kind, headless):
    model = why.open("demo/untrained-vit") if kind == "image" else headless
    if kind == "pixels":
        config = hf.ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
        )
        model = why.open(hf.ViTForImageClassification(config).eval())
    encoded = model.encode(doctor.make_sample_input(model))
    assert encoded.batch == 1 and encoded.main == {"ids": "input_ids"}.get(kind, "pixel_values")


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: str, code: int) -> tuple[str, str]:
    result = CliRunner().invoke(cli.app, ["doctor", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


def test_the_command_on_a_bundled_model(tmp_path):
    out, _ = run("demo/untrained-vit", "-m", "rollout", "-m", "lrp", "-o", str(tmp_path / "d.html"), code=0)
    assert "All 2 methods work." in out and (tmp_path / "d.html").stat().st_size > 1000


def test_the_command_prints_json(tmp_path):
    tiny_text.bert().save_pretrained(tmp_path)
    out, _ = run(str(tmp_path), "-m", "rollout", "-m", "attnlrp", "--json", code=0)
    assert json.loads(out)["verdict"] == "All 2 methods work."


@pytest.mark.parametrize("code", [6, 7])
def test_the_exit_status_of_the_command(monkeypatch, code):
    works = [MethodCheck("rollout", "works")] if code == 6 else []
    diagnosis = make_diagnosis(*works, MethodCheck("lrp", "refused", "E_MODEL_OPERATION", "no"))
    monkeypatch.setattr(why, "diagnose", lambda *_, **__: diagnosis)
    assert "1 refused" in run("demo/untrained-vit", code=code)[0]


def test_the_command_without_a_model_that_can_be_used(tmp_path):
    assert "error[E_MODEL_NOT_FOUND]" in run("no/such/model", code=4)[1]
    assert "error[E_USAGE]" in run(code=2)[1]
    assert "error[E_METHOD]" in run("demo/untrained-vit", "-m", "rolout", code=2)[1]
    assert "error[E_IMG_READ]" in run("demo/untrained-vit", str(tmp_path / "none.png"), code=3)[1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["demo/sentiment", "demo/untrained-vit", "demo/decoder"])
def test_every_method_works_on_the_bundled_models(model):
    d = why.diagnose(model)
    assert d.exit_code == 0 and len(d.checks) == len(why.METHODS)


def test_a_sample_is_the_same_every_time():
    model = why.open("demo/untrained-vit")
    first, second = (np.asarray(doctor.make_sample_input(model)) for _ in range(2))
    assert np.array_equal(first, second)
