"""Virtual tokens of a learned prompt: what was counted from the first token is counted from the first virtual one."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import whyformer as why
from whyformer._model.encoded import EncodedBatch
from whyformer._model.prompted import add_virtual_tokens, wrap_prompted
from whyformer._plain.tokens import NamedTokens
from whyformer.errors import UnsupportedModel

PROMPT, ANSWER = "The keys are old. The keys", " are old"


class Tuned(nn.Module):
    """What PromptedTransformer asks of a PEFT model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        self.word_embeddings = model.get_input_embeddings()
        self.active_peft_config = SimpleNamespace(num_virtual_tokens=3)
        self.prompt = nn.Parameter(torch.randn(3, model.config.n_embd, generator=torch.Generator().manual_seed(0)))

    def get_prompt(self, batch_size: int) -> torch.Tensor:
        return self.prompt.expand(batch_size, -1, -1)


@pytest.fixture
def tuned() -> why.Model:
    plain = why.open("demo/decoder")
    return why.open(wrap_prompted(Tuned(plain.module)), tokenizer=plain.tokenizer)


def test_the_score_of_an_answer_is_that_of_its_tokens(tuned):
    """By hand: each token of the answer at the place before it, behind the three virtual tokens."""
    e = why.explain(tuned, PROMPT, "libragrad", answer=ANSWER)
    ids = tuned.tokenizer(PROMPT + ANSWER)["input_ids"]
    first = len(tuned.tokenizer(PROMPT)["input_ids"])
    with torch.no_grad():
        logits = tuned.module(
            input_ids=torch.tensor([[*range(tuned.module.vocabulary, tuned.module.vocabulary + 3), *ids]])
        ).logits
    wanted = sum(float(logits[0, 3 + place - 1, ids[place]]) for place in range(first, len(ids)))
    assert e.targets[0].score == pytest.approx(wanted, rel=1e-5)
    assert e.scores.shape == (1, 3 + len(ids))


def test_verbs_that_count_from_the_text_refuse_and_explain_works_instead(tuned):
    with pytest.raises(UnsupportedModel, match=r"cite\(\) does not support .* explain\(model, prompt\)"):
        why.cite(tuned, PROMPT, by="sentence", answer=ANSWER)
    with pytest.raises(UnsupportedModel, match=r"trace_reasoning\(\) does not support"):
        why.trace_reasoning(tuned, PROMPT, answer=ANSWER)
    why.explain(tuned, why.Prompt.from_text(tuned, PROMPT, ANSWER), "libragrad")


def test_answers_and_regions_move_behind_the_virtual_tokens():
    encoded = EncodedBatch(
        inputs={"input_ids": torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])},
        main="input_ids",
        batch=2,
        names=("one", "two"),
        token_mask=torch.tensor([[True] * 4, [True, True, False, False]]),
        answers=((2, 4), None),
        regions=((NamedTokens("prompt", "other", 0, 2),), ()),
    )
    longer = add_virtual_tokens(SimpleNamespace(virtual_tokens=3, vocabulary=100), encoded)
    ids = longer.inputs["input_ids"]
    assert ids[0].tolist() == [100, 101, 102, 5, 6, 7, 8]
    (start, stop), none = longer.answers
    assert ids[0, start:stop].tolist() == [7, 8] and none is None
    assert longer.regions == ((NamedTokens("prompt", "other", 3, 5),), ())
