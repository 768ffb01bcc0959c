"""flex_attention in one's own module: the scores are those of the same attention written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import whyformer as why
from whyformer.errors import UnknownOperation, UnsupportedModel

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(0))
PLACES = torch.arange(7)
METHODS = ["attnlrp", "transformer_attribution", "attcat"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is deprecated"),
]


class Classifier(nn.Module):
    """Two blocks whose attention is a function of queries, keys, values and a table of biases [head, distance]."""

    def __init__(self, attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.bias = attend, nn.Parameter(torch.randn(2, 13))
        self.words, self.places, self.head = nn.Embedding(50, 16), nn.Parameter(torch.randn(7, 16)), nn.Linear(16, 3)
        self.projections = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places
        for project in self.projections:
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in project(x).chunk(3, -1))
            x = x + self.attend(q, k, v, self.bias).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


def attend_biased(q, k, v, bias):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h, i - j + 6])


def attend_biased_by_hand(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, bias[:, PLACES[:, None] - PLACES + 6])


def attend_causally(q, k, v, bias):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 7, 7, device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


def attend_causally_by_hand(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_capped(q, k, v, bias):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: 2 * torch.tanh(score / 2))


def attend_capped_by_hand(q, k, v, bias):
    return (2 * torch.tanh(q @ k.mT * 8**-0.5 / 2)).softmax(-1) @ v


def attend_shared(q, k, v, bias):
    return flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True, scale=0.5)


def attend_shared_by_hand(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True, scale=0.5)


def attend_with_a_sink(q, k, v, bias):
    """Keys compete with a constant score of 0, as in gpt-oss: the output is scaled by what they get."""
    output, log_sum = flex_attention(q, k, v, return_lse=True)
    return output * torch.sigmoid(log_sum)[..., None]


def attend_with_a_sink_by_hand(q, k, v, bias):
    scores = q @ k.mT * 8**-0.5
    return F.pad(scores, (0, 1)).softmax(-1)[..., :-1] @ v


CASES = {
    "bias": (attend_biased, attend_biased_by_hand),
    "causal": (attend_causally, attend_causally_by_hand),
    "soft cap": (attend_capped, attend_capped_by_hand),
    "shared keys": (attend_shared, attend_shared_by_hand),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_same_attention_written_out(case, method):
    flexible, plain = (Classifier(attend).double().eval() for attend in CASES[case])
    with torch.no_grad():
        logits = flexible(IDS)
    torch.testing.assert_close(logits, plain(IDS).detach())
    found, wanted = (why.explain(module, IDS, method, target=1) for module in (flexible, plain))
    torch.testing.assert_close(found.scores, wanted.scores)
    with torch.no_grad():
        assert torch.equal(flexible(IDS), logits)


def test_gradients_pass_the_logarithm_of_the_sum_and_relevance_is_refused():
    modules = [Classifier(attend).double().eval() for attend in (attend_with_a_sink, attend_with_a_sink_by_hand)]
    found, wanted = (why.explain(module, IDS, "gradient_x_input", target=1) for module in modules)
    torch.testing.assert_close(found.scores, wanted.scores)
    with pytest.raises(UnknownOperation, match="no relevance rule"):
        why.explain(modules[0], IDS, "attnlrp", target=1)


def test_a_query_without_keys_gives_zeros():
    def attend(q, k, v, bias):
        mask = create_block_mask(lambda b, h, i, j: j < i, None, None, 7, 7, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    module = Classifier(attend).double().eval()
    with torch.no_grad():
        wanted = module(IDS)
    found = why.record(model := why.open(module), model.encode(IDS), keep={"attention"})
    torch.testing.assert_close(found.logits, wanted)
    assert why.explain(module, IDS, "gradient_x_input", target=1).scores.isfinite().all()


def test_a_function_that_cannot_take_all_pairs_is_named():
    def attend(q, k, v, bias):
        def change(score, b, h, i, j):
            return score - score.mean()

        return flex_attention(q, k, v, score_mod=change)

    with pytest.raises(UnsupportedModel, match=r"gives flex_attention change, which cannot be called .* differ"):
        why.explain(Classifier(attend).double().eval(), IDS, "rollout", target=1)


def test_a_compiled_function_runs_as_it_is_written():
    compiled = torch.compile(flex_attention, backend="eager")
    module = Classifier(lambda q, k, v, bias: compiled(q, k, v)).double().eval()
    plain = Classifier(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v)).double().eval()
    found, wanted = (why.explain(one, IDS, "attnlrp", target=1) for one in (module, plain))
    torch.testing.assert_close(found.scores, wanted.scores)
