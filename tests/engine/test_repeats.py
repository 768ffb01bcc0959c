"""Repeated planned runs: a captured run gives what an ordinary one does, or gives way to one."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import whyformer as why
from whyformer import targets
from whyformer._engine.plan import repeats, runner
from whyformer._engine.run.model_memory import recall

TOKENS = 24


class FakeKernels:
    """Runs the function again into the tensors of its first run, as a CUDA graph does."""

    replays = 0

    def __init__(self, function, device, after=None):
        self.function, self.results = function, [one.clone() for one in function()]

    def replay(self):
        FakeKernels.replays += 1
        for kept, new in zip(self.results, self.function(), strict=True):
            kept.copy_(new.detach())


@pytest.fixture
def captured(monkeypatch):
    monkeypatch.setattr(repeats, "Kernels", FakeKernels)
    monkeypatch.setattr(repeats, "can_capture", lambda ids: True)
    monkeypatch.setattr(repeats, "is_torch_used_elsewhere", lambda: False)
    FakeKernels.replays = 0


def build():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=40)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, max_position_embeddings=128)).eval()


def make_inputs(seed, tokens=TOKENS, padding=0):
    ids = torch.randint(1, 40, (1, tokens), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[:, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def explain(module, inputs, **options):
    with why.engine(plan=True):
        return why.explain(module, inputs, method="attnlrp", **options).scores


def explain_ordinarily(inputs, **options):
    return explain(build(), inputs, **options)


def test_the_third_run_of_a_shape_is_captured_and_gives_the_same(captured):
    module = build()
    for seed in range(6):
        assert torch.equal(explain(module, make_inputs(seed)), explain_ordinarily(make_inputs(seed)))
        assert FakeKernels.replays == (0 if seed < 2 else 2 * seed)  # forward and backward; a new graph is tried first


def test_nothing_is_captured_where_replays_are_switched_off(captured):
    module = build()
    for seed in range(5):
        with why.engine(plan=True, replay=False):
            why.explain(module, make_inputs(seed), method="attnlrp")
    assert FakeKernels.replays == 0


def test_a_capture_waits_while_another_thread_uses_torch(captured, monkeypatch):
    module = build()
    monkeypatch.setattr(repeats, "is_torch_used_elsewhere", lambda: True)
    for seed in range(4):
        explain(module, make_inputs(seed))
    assert FakeKernels.replays == 0
    monkeypatch.setattr(repeats, "is_torch_used_elsewhere", lambda: False)
    explain(module, make_inputs(5))
    assert FakeKernels.replays == 4


def test_any_target_is_explained_from_one_captured_run(captured):
    module = build()
    for target in (None, None, None, 7, targets.Tokens(TOKENS - 3, TOKENS - 1)):
        given = {} if target is None else {"target": target}
        assert torch.equal(explain(module, make_inputs(1), **given), explain_ordinarily(make_inputs(1), **given))
    assert FakeKernels.replays == 6  # a span reads other positions, and has a shape of its own


def test_an_input_that_takes_another_branch_runs_ordinarily(captured, monkeypatch):
    monkeypatch.setattr(runner, "LONG_FROM", TOKENS)  # short inputs with padding have a plan of their own
    module = build()
    for seed in range(3):
        explain(module, make_inputs(seed))
    padded = make_inputs(5, padding=4)
    ours, theirs = explain(module, padded), explain_ordinarily(padded)
    assert FakeKernels.replays == 6  # tried, and not believed
    assert torch.equal(ours, theirs) and not torch.equal(ours, explain_ordinarily(make_inputs(5)))


def test_another_length_and_other_weights_start_anew(captured):
    module = build()
    for tokens in (TOKENS, TOKENS, TOKENS + 1, TOKENS, TOKENS):
        explain(module, make_inputs(1, tokens))
    assert FakeKernels.replays == 0
    explain(module, make_inputs(1))
    assert FakeKernels.replays == 4
    with torch.no_grad():
        module.lm_head.weight.mul_(2.0)
    before = explain_ordinarily(make_inputs(1))
    assert torch.allclose(explain(module, make_inputs(1)), 2 * before, rtol=1e-5)
    assert FakeKernels.replays == 4


def test_what_cannot_be_captured_is_run_ordinarily(captured, monkeypatch):
    def fail(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(repeats, "Kernels", fail)
    module = build()
    for seed in range(4):
        assert torch.equal(explain(module, make_inputs(seed)), explain_ordinarily(make_inputs(seed)))
    assert recall(module, "shadows", of_weights=True)[None].repeats.last.is_refused


def test_a_graph_that_gives_something_else_is_refused(captured, monkeypatch):
    class WrongKernels(FakeKernels):
        def replay(self):
            super().replay()
            self.results[-1][..., :8, :] *= 2

    monkeypatch.setattr(repeats, "Kernels", WrongKernels)
    module = build()
    for seed in range(4):
        assert torch.equal(explain(module, make_inputs(seed)), explain_ordinarily(make_inputs(seed)))
    assert recall(module, "shadows", of_weights=True)[None].repeats.last.is_refused


def test_memory_that_runs_out_takes_the_graphs_first(captured, monkeypatch):
    module = build()
    for seed in range(3):
        explain(module, make_inputs(seed))
    assert recall(module, "shadows", of_weights=True)[None].repeats.last.graph is not None
    run_once, failed = runner.run_once, []

    def fail_once(*args, **options):
        if not failed:
            failed.append(1)
            raise why.errors.ResourceError("out of memory")
        return run_once(*args, **options)

    monkeypatch.setattr(runner, "run_once", fail_once)
    explain(module, make_inputs(1))
    assert recall(module, "shadows", of_weights=True)[None].repeats.last.graph is None
