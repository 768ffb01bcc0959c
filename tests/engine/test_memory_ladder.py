"""Memory that runs out in a planned run: blocks are computed again, then examples run alone, then an error says why."""

import weakref

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import whyformer as why
from whyformer._engine.plan import memory, runner
from whyformer._engine.plan.run import Saving
from whyformer.errors import ResourceError

IDS = torch.randint(1, 40, (2, 140), generator=torch.Generator().manual_seed(0))


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=40)).eval()


class SmallDevice:
    """Stands before run_planned and raises as CUDA does where a run would keep too much."""

    def __init__(self, monkeypatch, fits) -> None:
        self.runs, run_planned = [], runner.run_planned

        def run(request, shadow, plan, positions, *, saving):
            ids = request.encoded.inputs[request.encoded.main]
            if ids.size(1) > 16:  # not while the plan is made
                self.runs.append((len(ids), int(saving)))
                if not fits(len(ids), saving):
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return run_planned(request, shadow, plan, positions, saving=saving)

        monkeypatch.setattr(runner, "run_planned", run)


def explain(module, ids):
    return why.explain(module, {"input_ids": ids}, "attnlrp")


def test_blocks_are_computed_again_when_memory_runs_out(monkeypatch):
    module = build()
    before = explain(module, IDS)
    device = SmallDevice(monkeypatch, lambda rows, saving: saving)
    e = explain(module, IDS)
    assert device.runs == [(2, 0), (2, 1)]
    assert torch.allclose(e.scores, before.scores, atol=1e-6)
    assert "Blocks were computed again in the backward pass: memory ran out without." in e.notes


def test_then_their_inputs_are_kept_in_main_memory(monkeypatch):
    module = build()
    before = explain(module, IDS)
    device = SmallDevice(monkeypatch, lambda rows, saving: saving is Saving.INPUTS)
    monkeypatch.setattr(memory, "has_main_memory", lambda encoded: True)
    moved = count_moves(monkeypatch)
    e = explain(module, IDS)
    assert device.runs == [(2, 0), (2, 1), (2, 2)]
    assert moved == [(2, 140, 16)] * 3  # the input of each block
    assert torch.allclose(e.scores, before.scores, atol=1e-6)
    assert e.notes[-1].endswith("from inputs kept in main memory: memory ran out without.")


def test_a_block_holds_no_input_that_was_moved(monkeypatch):
    module, alive, run_planned = build(), [], runner.run_planned
    explain(module, IDS)
    moved, move = [], torch.Tensor.cpu

    def copy(tensor):
        moved.extend([weakref.ref(tensor)] if tensor.dim() == 3 else [])
        return move(tensor).clone()

    def run(*args, **options):
        made = run_planned(*args, **options)
        alive.extend(one() is not None for one in moved)
        return made

    monkeypatch.setattr(memory, "choose_saving", lambda *args: (Saving.INPUTS, ()))
    monkeypatch.setattr(runner, "run_planned", run)
    monkeypatch.setattr(torch.Tensor, "cpu", copy)
    explain(module, IDS)
    assert alive == [True, False, False]  # the first one is the explained input


def count_moves(monkeypatch):
    """The shapes of tensors that are moved to main memory."""
    found, move = [], torch.Tensor.cpu
    in_blocks = lambda tensor: found.append(tuple(tensor.shape)) if tensor.dim() == 3 else None  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: (in_blocks(tensor), move(tensor))[1])
    return found


def test_then_each_example_runs_alone(monkeypatch):
    module = build()
    before = explain(module, IDS)
    device = SmallDevice(monkeypatch, lambda rows, saving: saving and rows == 1)
    e = explain(module, IDS)
    assert device.runs == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 0), (1, 1)]
    assert torch.allclose(e.scores, before.scores, atol=1e-6)
    assert e.notes[-1] == "Each example was run alone: memory ran out for all at once."


def test_then_an_error_says_how_much_would_fit(monkeypatch):
    module = build()
    explain(module, IDS)
    SmallDevice(monkeypatch, lambda rows, saving: False)
    monkeypatch.setattr(memory, "find_free_memory", lambda device: 2**18)
    monkeypatch.setattr(memory, "ALWAYS_FREE", 0)
    with pytest.raises(ResourceError, match="140 tokens do not fit, also with blocks computed again") as error:
        explain(module, IDS[:1])
    assert error.value.code == "E_MEMORY" and error.value.exit_code == 5
    fitting = int(str(error.value).split("enough for about ")[1].split(" ")[0].replace(",", ""))
    # Of each token the inputs of three blocks (16 numbers each) and twice what one block keeps.
    assert 2**18 * 0.8 / (3 * 16 * 4 + 16 * 1024) < fitting < 2**18 * 0.8 / (3 * 16 * 4)


def test_who_wants_no_blocks_again_is_told_about_them(monkeypatch):
    module = build()
    explain(module, IDS)
    SmallDevice(monkeypatch, lambda rows, saving: saving)
    with why.engine(recompute=False), pytest.raises(ResourceError, match=r"engine\(recompute=True\)"):
        explain(module, IDS[:1])


def test_several_targets_go_on_where_memory_ran_out(monkeypatch):
    module = build()
    prompt = why.Prompt.from_tokens(module, IDS[0, :137].tolist(), IDS[0, 137:].tolist())
    before = why.explain_generation(module, prompt, method="attnlrp")
    SmallDevice(monkeypatch, lambda rows, saving: saving)
    after = why.explain_generation(module, prompt, method="attnlrp")
    for ours, theirs in zip(after.steps, before.steps, strict=True):
        assert torch.allclose(ours.scores, theirs.scores, atol=1e-6)
