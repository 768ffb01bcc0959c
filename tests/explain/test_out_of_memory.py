"""Memory that runs out in a model's own code: an error of ours with a code, and what takes less."""

import pytest
import torch
from torch import nn

import whyformer as why
from whyformer._plain.failure import describe_failure, is_out_of_memory
from whyformer.errors import ResourceError

MESSAGE = "CUDA out of memory. Tried to allocate 20.00 GiB.\nSee the documentation."


class Overflows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        raise torch.OutOfMemoryError(MESSAGE)


class Hungry(nn.Module):
    """A small causal language model that runs out of memory in its forward or backward pass."""

    def __init__(self, where):
        super().__init__()
        torch.manual_seed(0)
        self.where = where
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, input_ids, attention_mask=None):
        if self.where == "forward":
            raise torch.OutOfMemoryError(MESSAGE)
        if self.where == "processor":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        x = self.embed(input_ids)
        x = x + nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(Overflows.apply(x) if self.where == "backward" else x)


IDS = {"input_ids": torch.tensor([[1, 2, 3, 4]])}


@pytest.mark.parametrize(
    ("where", "method"),
    [("forward", "rollout"), ("forward", "leave_one_out"), ("backward", "saliency"), ("processor", "rollout")],
)
def test_memory_that_runs_out_is_an_error_of_ours(where, method):
    model = why.open(Hungry(where))
    with pytest.raises(
        ResourceError, match=r"Out of memory.*fewer or shorter inputs.*engine\(recompute=True\)"
    ) as error:
        why.explain(model, IDS, method)
    assert error.value.code == "E_MEMORY" and error.value.exit_code == 5 and is_out_of_memory(error.value)
    assert describe_failure(error.value)[0] == "E_MEMORY"


def test_newer_verbs_say_it_too():
    model = why.open(Hungry("forward"))
    prompt = why.Prompt.from_tokens(model, [1, 2, 3, 4], [5])
    regions = [why.Region("one", "passage", 0, 1, ""), why.Region("two", "passage", 1, 2, "")]
    for call in (
        lambda: why.cite(model, prompt, by=regions),
        lambda: why.check_answer(model, prompt),
        lambda: why.generate(model, prompt.without_answer(), max_new_tokens=1),
        lambda: why.trace_reasoning(model, prompt),
        lambda: why.compare(model, IDS, ["rollout", "saliency"]),
    ):
        with pytest.raises(ResourceError, match="Out of memory"):
            call()
    assert why.diagnose(why.open(Hungry("backward")), IDS, ["saliency"]).checks[0].code == "E_MEMORY"


def test_other_errors_stay_as_they_are():
    class Breaks(Hungry):
        def forward(self, input_ids, attention_mask=None):
            raise RuntimeError("my own bug")

    with pytest.raises(RuntimeError, match="my own bug"):
        why.explain(why.open(Breaks("forward")), IDS, "rollout")
