"""What no source can support: answers that the model would hardly give, and answers that no source contains."""

import math

import pytest
import torch
from tiny_prompts import PASSAGES, TEXT, decoder, make_prompt

import whyformer as why
from whyformer._cite.likelihood import Likelihood, measure_likelihood
from whyformer._cite.mention import is_mentioned


def read_logits(prompt):
    with torch.no_grad():
        return decoder().module(torch.tensor([prompt.ids])).logits[0]


def test_the_likelihood_by_definition():
    """Log p, minus the entropy, and the deviation of log p under the model, token by token."""
    prompt = make_prompt()
    found = measure_likelihood(read_logits(prompt), prompt, [0, 2])
    with torch.no_grad():
        p = decoder().module(torch.tensor([prompt.ids])).logits[0].softmax(-1)
    rows = [p[prompt.prompt_length + token - 1] for token in (0, 2)]
    own = [float(row[prompt.answer_ids[token]]) for row, token in zip(rows, (0, 2), strict=True)]
    means = [sum(float(one) * math.log(one) for one in row) for row in rows]
    variances = [
        sum(float(one) * (math.log(one) - mean) ** 2 for one in row) for row, mean in zip(rows, means, strict=True)
    ]
    assert found.log_probability == pytest.approx(sum(map(math.log, own)))
    assert found.expected == pytest.approx(sum(means)) and found.deviation == pytest.approx(math.sqrt(sum(variances)))


def test_what_is_plausible():
    assert Likelihood(-6.0, -0.1, 0.2).is_plausible and not Likelihood(-15.0, -0.1, 0.2).is_plausible
    assert Likelihood(-900.0, -850.0, 45.0).is_plausible  # a long answer that was drawn: within four deviations
    assert not Likelihood(-1100.0, -850.0, 45.0).is_plausible


def test_drawn_answers_are_plausible_and_others_are_not():
    """The tiny decoder draws its own answer at temperature 1; the same tokens backwards are none of its own."""
    drawn = [why.generate(decoder(), TEXT, max_new_tokens=12, temperature=1.0, seed=seed) for seed in range(6)]
    own = [measure_likelihood(read_logits(one), one, range(len(one.answer))) for one in drawn]
    assert all(one.is_plausible for one in own)
    with torch.no_grad():
        logits = decoder().module(torch.tensor([drawn[0].ids[: drawn[0].prompt_length]])).logits[0, -1]
    unlikely = why.Prompt.from_tokens(decoder(), drawn[0].ids[: drawn[0].prompt_length], [int(logits.argmin())])
    assert not measure_likelihood(read_logits(unlikely), unlikely, [0]).is_plausible


def test_an_impossible_word_has_no_part_in_the_mean():
    from whyformer._cite.likelihood import sum_moments

    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    own, mean, variance = sum_moments(logits, torch.tensor([0])).tolist()
    assert own == pytest.approx(-math.log(2)) and mean == pytest.approx(-math.log(2)) and variance == pytest.approx(0)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (" good", True),
        (" GOOD.", True),
        (" the film", True),
        (" film the", False),
        (" bad good", False),
        (" wonderful", False),
        (" the film is good and the plot is a mess", True),  # most words of a long answer
        (" nobody ever wrote anything like these eight words", False),
    ],
)
def test_what_the_sources_mention(answer, expected):
    prompt = make_prompt(answer)
    assert is_mentioned(prompt, range(len(prompt.answer)), prompt.split(PASSAGES)) is expected


def test_without_a_text_nothing_is_doubted():
    regions = [why.Region("one", "passage", 0, 2, ""), why.Region("two", "passage", 2, 4, "")]
    assert is_mentioned(make_prompt(), [0], regions)


def test_cite_says_what_is_doubtful():
    cited = why.cite(decoder(), TEXT, by=PASSAGES, answer=" xyzzy")
    assert "supported" not in {one.verdict for one in cited}
    assert any("no source contains the answer" in note for note in cited.notes)
    known = why.cite(decoder(), TEXT, by=PASSAGES, answer=" good")
    assert not any("no source contains the answer" in note for note in known.notes)
