"""Batches of variants: which rows go together, what happens when memory runs out, and what is prepared ahead."""

import pytest
import torch
import transformers
from conftest import animal, build
from tiny_text import wordpiece
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import whyformer as why
from whyformer._engine.probe.batching import count_rows, plan_batches, run_batches, sort_rows
from whyformer._engine.probe.probe import is_finite
from whyformer._engine.record import record
from whyformer._engine.run.model_memory import learnt, recall
from whyformer.errors import MethodError

KEEP = torch.rand(30, 9, generator=torch.Generator().manual_seed(1)) > 0.4
OF = torch.randint(3, (30,), generator=torch.Generator().manual_seed(2))


def probe_of(module, inputs):
    model = why.open(module)
    return record(model, model.encode(inputs), target=[0, 1, 2], keep={"probe"})["probe"]


# --- which rows together ----------------------------------------------------------------------------------------------


def tensors(*columns):
    return [torch.tensor(column) for column in columns]


def test_plan_by_hand():
    """Lengths 3, 9, 3, 4: two threes and a four waste two tokens together, with the nine they would waste 17 more."""
    starts, ends, groups = tensors([0] * 4, [3, 9, 3, 4], [0] * 4)
    plan = plan_batches(starts, ends, groups, 10, 2)
    assert [rows.tolist() for rows in plan] == [[0, 2, 3], [1]]
    assert [rows.tolist() for rows in plan_batches(starts, ends, groups, 10, 1)] == [[0, 2], [3], [1]]
    assert [rows.tolist() for rows in plan_batches(starts, ends, groups, 2, 99)] == [[0, 2], [3, 1]]


def test_plan_of_tails_by_hand():
    """All end at 10; those that start at 8 and 7 go together, the one that starts at 1 would make them longer."""
    starts, ends, groups = tensors([8, 1, 7], [10] * 3, [0] * 3)
    assert [rows.tolist() for rows in plan_batches(starts, ends, groups, 10, 1)] == [[1], [2, 0]]


def test_every_row_is_planned_once_within_the_limits():
    generator = torch.Generator().manual_seed(5)
    starts = torch.randint(0, 20, (200,), generator=generator)
    ends = starts + torch.randint(1, 30, (200,), generator=generator)
    groups = torch.randint(0, 3, (200,), generator=generator)
    plan = plan_batches(starts, ends, groups, 16, 40)
    assert sorted(torch.cat(plan).tolist()) == list(range(200))
    for rows in plan:
        width = int(ends[rows].max() - starts[rows].min())
        assert len(rows) <= 16 and len(groups[rows].unique()) == 1
        assert len(rows) * width - int((ends - starts)[rows].sum()) <= 40


def test_rows_are_sorted_by_several_keys():
    assert sort_rows(*tensors([1, 0, 1, 0], [5, 6, 4, 6])).tolist() == [1, 3, 2, 0]


# --- how many ---------------------------------------------------------------------------------------------------------


def test_more_memory_is_more_rows():
    model = why.open(build("bert"))
    with why.engine(memory=2**20):
        few = count_rows(model, 20)
    with why.engine(memory=2**22):
        many = count_rows(model, 20)
        assert count_rows(model, 40) < many
        assert count_rows(model, 20, with_graph=True) < many
    assert abs(many - 4 * few) <= 4
    with why.engine(memory=1):
        assert count_rows(model, 20) == 1
    with why.engine(rows=3):
        assert count_rows(model, 20) == 3


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "8"])
def test_other_sizes_are_refused(wrong):
    for name in ("rows", "memory"):
        with pytest.raises(MethodError, match=f"{name} must be a whole number >= 1"), why.engine(**{name: wrong}):
            pass


@pytest.mark.parametrize("fill", ["pad", "delete", "drop"])
def test_a_batch_that_does_not_fit_is_split(fill):
    module, inputs = build("bert"), animal("bert").inputs
    whole = probe_of(module, inputs).keep_only(KEEP, OF, fill)
    sizes = []

    def run_out(_, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("out of memory")

    probe = probe_of(module, inputs)
    module.register_forward_pre_hook(run_out, with_kwargs=True)
    found = probe.keep_only(KEEP, OF, fill)
    torch.testing.assert_close(found.logits, whole.logits, rtol=1e-10, atol=1e-12)
    assert max(sizes) > 3 and learnt(module).memory_share < 1


def test_the_smaller_budget_is_remembered_for_this_model():
    module, other = build("bert"), build("bert")
    rows = count_rows(why.open(module), 20)
    failed = []

    def launch(_, rows):
        if len(rows) > 2:
            failed.append(len(rows))
            raise torch.OutOfMemoryError("out of memory")
        return rows

    model = why.open(module)
    batches = list(torch.arange(9).split(8))
    done = list(run_batches(batches, model, lambda rows: rows, launch, lambda made, _: made))
    assert torch.cat([rows for rows, _ in done]).tolist() == list(range(9))
    assert failed == [8, 4]
    assert learnt(module).memory_share == 0.25 and learnt(other).memory_share == 1
    with why.engine(memory=2**20):
        assert count_rows(model, 20) == count_rows(why.open(other), 20) // 4
    assert rows >= count_rows(model, 20)


class LargestResult(TorchDispatchMode):
    """The bytes of the largest tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(t.nbytes for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


def test_reading_the_answers_needs_little_memory_beside_the_logits():
    """`isfinite` makes a copy of the logits of every token, which are nearly all of the memory of a batch."""
    config = transformers.GPT2Config(
        vocab_size=3000, n_embd=24, n_layer=1, n_head=3, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    probe = probe_of(transformers.GPT2LMHeadModel(config).eval(), {"input_ids": torch.arange(60).view(3, 20)})
    with torch.no_grad(), LargestResult() as made:
        returned = probe.model.module(**probe.encoded.inputs)
        made.bytes = 0
        probe.read_answers(probe.encoded, returned, torch.arange(3))
    assert made.bytes <= returned.logits.nbytes / 20, "the logits of the last token"


def test_a_batch_waits_for_the_one_before_if_both_do_not_fit():
    """Room for four rows: two batches of three fit one after the other, so none is split."""
    held, launched = [], []

    def launch(_, rows):
        if sum(held) + len(rows) > 4:
            raise torch.OutOfMemoryError("out of memory")
        held.append(len(rows))
        launched.append(len(rows))
        return rows

    def finish(made, _):
        held.pop(0)
        return made

    module = build("bert")
    done = list(run_batches(list(torch.arange(9).split(3)), why.open(module), lambda rows: rows, launch, finish))
    assert torch.cat([rows for rows, _ in done]).tolist() == list(range(9))
    assert launched == [3, 3, 3] and learnt(module).memory_share == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_every_number_of_an_output_is_checked(wrong):
    output = torch.zeros(2, 3, 4)
    assert is_finite(output) and is_finite(torch.zeros(0, 3))
    output[1, 2, 0] = wrong
    assert not is_finite(output)


def test_one_row_that_does_not_fit_is_an_error():
    def launch(*_):
        raise torch.OutOfMemoryError("out of memory")

    model = why.open(build("bert"))
    with pytest.raises(torch.OutOfMemoryError):
        list(run_batches([torch.arange(2)], model, lambda rows: rows, launch, lambda made, _: made))


# --- ahead ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [True, False])
def test_the_next_batch_is_launched_before_the_last_one_is_read(ahead):
    events = []

    def note(what):
        return lambda *given: events.append((what, int(given[-1][0]))) or given[-1]

    with why.engine(ahead=ahead):
        batches = list(torch.arange(3).split(1))
        list(run_batches(batches, why.open(build("bert")), note("prepare"), note("launch"), note("finish")))
    step = [("prepare", 0), ("launch", 0), ("finish", 0)]
    one_by_one = [(what, i) for i in range(3) for what, _ in step]
    assert (events == one_by_one) is not ahead
    assert sorted(events) == sorted(one_by_one)
    if ahead:
        assert events.index(("launch", 1)) < events.index(("finish", 0)) < events.index(("prepare", 2))


# --- padding ----------------------------------------------------------------------------------------------------------

TEXTS = ["the film is not good at all , not good ! the film is bad .", "good !", "a bad film"]


class ReadsPadding(torch.nn.Module):
    """Its answer depends on how long the padded text is."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask=None):
        logits = self.inner(input_ids, attention_mask=attention_mask).logits
        return logits * (1 + 0.01 * input_ids.size(1))


def test_short_texts_run_without_the_padding_of_long_ones():
    module = build("bert")
    model = why.open(module, tokenizer=wordpiece())
    with why.engine(cut_padding=False):
        padded = why.explain(model, TEXTS, "leave_one_out", fill="mask", target=1)
    assert not recall(module, "shortcuts")
    together = why.explain(model, TEXTS, "leave_one_out", fill="mask", target=1)
    assert recall(module, "shortcuts")["cut padding"]
    torch.testing.assert_close(together.scores, padded.scores, rtol=1e-9, atol=1e-11)
    for text, scores in zip(TEXTS, together.scores, strict=True):
        alone = why.explain(model, text, "leave_one_out", fill="mask", target=1).scores[0]
        torch.testing.assert_close(scores[: len(alone)], alone, rtol=1e-9, atol=1e-11)


def test_padding_stays_if_the_model_reads_it():
    module = ReadsPadding(build("bert"))
    model = why.open(module, tokenizer=wordpiece())
    together = why.explain(model, TEXTS, "leave_one_out", fill="mask", target=1)
    assert not recall(module, "shortcuts")["cut padding"]
    encoded = model.encode(TEXTS)
    ids = encoded.inputs["input_ids"].clone()
    ids[1, 2] = model.tokenizer.mask_token_id
    with torch.no_grad():
        before = module(**encoded.inputs)[1, 1]
        after = module(ids, encoded.inputs["attention_mask"])[1, 1]
    torch.testing.assert_close(together.scores[1, 2], before - after, rtol=1e-9, atol=1e-11)


def test_shortened_texts_run_without_padding_if_the_model_reads_it():
    """Shapley values add up to what the plain model says of the text and of its special tokens alone."""
    module = ReadsPadding(build("bert"))
    model = why.open(module, tokenizer=wordpiece())
    ids = model.encode(TEXTS[0]).inputs["input_ids"]
    e = why.explain(model, TEXTS[0], "kernel_shap", fill="delete", target=1)
    with torch.no_grad():
        whole, bare = (module(one, torch.ones_like(one))[0, 1] for one in (ids, ids[:, [0, -1]]))
    torch.testing.assert_close(e.scores.sum(), whole - bare, rtol=1e-6, atol=1e-9, check_dtype=False)
