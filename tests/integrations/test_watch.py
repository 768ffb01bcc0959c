"""Watch: how much of the evidence moved between two looks, by hand and on a model whose weights change."""

import json

import pytest
import tiny_text
import torch

import whyformer as why
from whyformer.data import Example, read
from whyformer.errors import InputError
from whyformer.integrations import FolderTracker, Watch
from whyformer.integrations.schedule import Schedule
from whyformer.integrations.watch import measure_moves

TEXTS = ["the film is bad", "a film"]


def open_tiny():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece(), labels=["negative", "neutral", "positive"])


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ([1.0, 1.0], [1.0, 1.0], 0),
        ([1.0, 0.0], [0.0, 3.0], 1),
        ([1.0, 1.0], [1.0, 3.0], 0.25),
        ([-1.0, 1.0], [2.0, 2.0], 0),  # the sign is not where the model looks
        ([0.0, 0.0], [1.0, 0.0], 0.5),
    ],
)
def test_what_moved_by_hand(before, after, moved):
    assert measure_moves(torch.tensor([before]), torch.tensor([after])) == (moved,)


def predict_positive(model):
    with torch.no_grad():
        model.module.classifier.bias += torch.tensor([0.0, 0.0, 100.0], dtype=model.dtype)


def test_the_first_look_has_moved_nothing():
    first = Watch(TEXTS).look(open_tiny())
    assert first.moved is None and first.message == "" and not any("moved" in name for name in first.scalars())


def test_a_label_is_followed_and_without_one_the_answer_of_the_moment():
    model = open_tiny()
    watch = Watch([Example("a", TEXTS[0], "negative"), Example("b", TEXTS[1])])
    watch.look(model)
    predict_positive(model)
    followed = watch.look(model, step=1).explanation.targets
    assert [target.label for target in followed] == ["negative", "positive"]
    assert not followed[0].predicted and followed[1].predicted


def test_targets_that_are_given_are_followed():
    model, watch = open_tiny(), Watch(read([(TEXTS[0], 0)]), targets=1)
    first = watch.look(model)
    predict_positive(model)
    second = watch.look(model, step=1)
    assert first.explanation.targets[0].index == second.explanation.targets[0].index == 1
    assert max(second.moved) < 1e-3  # the same class of the same features


def test_a_jump_is_flagged_by_name():
    model, watch = open_tiny(), Watch(["the film is bad"], jump=0.01, method="gradient_x_input")
    watch.look(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    look = watch.look(model, step=7)
    assert look.jumped == list(look.explanation.names)
    assert look.message.startswith("Step 7: what the model looks at jumped in 1 of 1 examples")
    assert look.scalars()["moved/largest"] == max(look.moved)


def test_a_folder_gets_a_line_for_each_look_and_a_page_of_the_run(tmp_path):
    schedule = Schedule(TEXTS, every=5, trackers=[FolderTracker(tmp_path / "looks")], tokenizer=tiny_text.wordpiece())
    module = tiny_text.bert()
    assert [step for step in range(1, 12) if schedule.is_due(step)] == [5, 10]
    for step in (0, 5, 5):
        schedule.look(module, step)
    lines = [json.loads(line) for line in (tmp_path / "looks" / "looks.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 5] and lines[1]["moved/largest"] == 0
    page = (tmp_path / "looks" / "run.html").read_text()
    assert "2 looks at 2 examples" in page and "step 0" in page and "step 5" in page and TEXTS[0] in page


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="every must be a whole number >= 1, got 0"):
        Schedule(TEXTS, every=0)
    with pytest.raises(InputError, match="jump must be above 0"):
        Watch(TEXTS, jump=0)
