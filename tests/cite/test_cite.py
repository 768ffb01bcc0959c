"""cite: values are those of the model asked by hand, its cost is what it reads, and what cannot be cited is refused."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from tiny_prompts import PASSAGES, QUESTION, TEXT, chat_decoder, decoder, make_prompt

import whyformer as why
from whyformer._cite.measuring import Ablations
from whyformer._cite.run import CITE_METHOD
from whyformer._cite.sources import find_sources
from whyformer.errors import InputError, MethodError, TargetError, WhyformerError
from whyformer.show.prompt_page import make_prompt_page
from whyformer.targets import Answer

QUICK = {"effort": "fast"}


def log_probability(ids, answer):
    """Of the last tokens, each after those before it."""
    with torch.no_grad():
        logits = decoder().module(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(float(logits[place - 1, ids[place]]) for place in range(len(ids) - answer, len(ids)))


def log_odds(ids, answer, model=None):
    """The same by definition, from probabilities in float64: the sum of log(p / (1 - p)) over the last tokens."""
    with torch.no_grad():
        p = (model or decoder()).module(torch.tensor([ids])).logits[0].double().softmax(-1)
    own = [float(p[place - 1, ids[place]]) for place in range(len(ids) - answer, len(ids))]
    return sum(math.log(one) - math.log1p(-one) for one in own)


def delete(prompt, *sources):
    return [i for place, i in enumerate(prompt.ids) if not any(one.start <= place < one.stop for one in sources)]


def keep_only(prompt, sources):
    """The tokens without all other passages."""
    return delete(prompt, *(one for one in find_sources(prompt, PASSAGES, None).sources if one not in sources))


@pytest.fixture(scope="module")
def cited():
    return why.cite(decoder(), make_prompt(), by=PASSAGES)


def test_values_and_scores_written_slowly(cited):
    """The thorough search of four sources has all 16 subsets: weights are those of least squares by hand."""
    prompt = make_prompt()
    count = len(prompt.answer)
    assert cited.log_probability == pytest.approx(log_probability(list(prompt.ids), count), abs=1e-9)
    full = log_odds(list(prompt.ids), count)
    assert cited.log_odds == pytest.approx(full, abs=1e-9)
    thorough = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough")
    regions = find_sources(prompt, PASSAGES, None).sources
    rows = list(product([0, 1], repeat=4))
    values = [log_odds(keep_only(prompt, [r for r, k in zip(regions, row, strict=True) if k]), count) for row in rows]
    weights = np.linalg.lstsq(np.c_[np.ones(16), rows], values, rcond=None)[0][1:]
    by_name = {one.name: one.score for one in thorough}
    assert [by_name[one.name] for one in regions] == pytest.approx(list(weights), abs=1e-8)
    assert thorough.claim.effect == pytest.approx(values[-1] - values[0], abs=1e-8)
    assert thorough.claim.values
    for name, found in thorough.claim.values.items():
        (one,) = (region for region in regions if region.name == name)
        ids = [prompt.ids, delete(prompt, one), keep_only(prompt, [one]), keep_only(prompt, [])]
        assert found.log_odds == pytest.approx([log_odds(list(some), count) for some in ids], abs=1e-8)
        shares = [math.exp(log_probability(list(some), count) / count) for some in ids]
        assert (found.with_all, found.without, found.alone, found.with_none) == pytest.approx(shares, abs=1e-8)
    assert [one.score for one in cited] == sorted((one.score for one in cited), reverse=True)
    assert sum(abs(one.share) for one in cited) == pytest.approx(1)


def test_fast_scores_are_sums_of_relevance():
    e = why.explain(decoder(), make_prompt(), CITE_METHOD, target=Answer(score="log_odds"))
    fast = why.cite(decoder(), make_prompt(), by=PASSAGES, **QUICK)
    for one in fast:
        assert one.score == pytest.approx(float(e.scores[0, one.start : one.stop].sum()), abs=1e-9)
    total = sum(one.score for one in fast) + fast.rest
    assert total == pytest.approx(float(e.scores.sum()), abs=1e-9)


def test_the_model_reads_no_more_tokens_than_the_cost_says():
    """Counted at the embedding; the sentences share the ablations."""
    prompt = why.Prompt.from_text(decoder(), TEXT, " It is good. Not bad at all. The plot is bad.")
    why.cite(decoder(), prompt, by=PASSAGES)  # what is tried out once is not counted
    with why.engine(rows=1):  # without padding
        cited, read = count_read(lambda: why.cite(decoder(), prompt, by=PASSAGES))
    assert len(cited.sentences) == 3
    assert read / len(prompt.ids) == pytest.approx(cited.spent["cost"]) and cited.spent["cost"] <= 14 + 3 * 4


def test_without_sources_left_out_the_model_reads_the_prompt_once():
    prompt = make_prompt()
    why.cite(decoder(), prompt, by=PASSAGES, **QUICK)
    fast, read = count_read(lambda: why.cite(decoder(), prompt, by=PASSAGES, **QUICK))
    assert read == len(prompt.ids) and fast.spent["cost"] == 3


def count_read(call):
    """What a call returns, and how many tokens the model reads for it."""
    read = []
    handle = decoder().module.get_input_embeddings().register_forward_hook(lambda *given: read.append(given[1][0]))
    try:
        return call(), sum(ids.numel() for ids in read)
    finally:
        handle.remove()


@pytest.mark.parametrize("plan", [True, False])
def test_the_order_of_selected_tokens_does_not_matter(plan):
    with why.engine(plan=plan):
        found = [why.cite(decoder(), make_prompt(), by=PASSAGES, select=[*some]) for some in ((0, 3), (3, 0))]
    assert found[0].log_probability == found[1].log_probability and found[0].claim == found[1].claim


def test_a_sentence_is_measured_as_if_it_were_selected():
    """From the same runs: v of a sentence is the sum over its tokens."""
    answer = " It is good. Not bad at all."
    prompt = why.Prompt.from_text(decoder(), TEXT, answer)
    cited = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough")
    assert [one.text for one in cited.sentences] == ["It is good.", "Not bad at all."]
    for n, one in enumerate(cited.sentences):
        alone = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough", select=Answer(n, unit="sentence")).claim
        assert (one.how, one.rests_on, one.also, one.against) == (alone.how, alone.rests_on, alone.also, alone.against)
        assert one.effect == pytest.approx(alone.effect, abs=1e-9)
    assert cited.claim.effect == pytest.approx(sum(one.effect for one in cited.sentences), abs=1e-9)


def test_what_is_no_claim_is_not_measured():
    prompt = why.Prompt.from_text(decoder(), TEXT, " Sure! The film is good. I do not know.")
    cited = why.cite(decoder(), prompt, by=PASSAGES)
    assert [one.kind for one in cited.sentences] == ["greeting", "claim", "abstention"]
    greeting, claim, abstention = cited.sentences
    assert greeting.how == abstention.how == "" and not greeting.values and greeting.instead is None
    assert cited.claim == claim  # the answer claims what its only claim does


def test_what_the_model_says_instead_is_what_it_generates_without_the_source():
    prompt = make_prompt(" good.")
    cited = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough")
    regions = {one.name: one for one in find_sources(prompt, PASSAGES, None).sources}
    left = [regions[name] for name in cited.claim.rests_on] or list(regions.values())
    ids = delete(prompt, *left)[: -len(prompt.answer)]
    shortened = why.Prompt.from_tokens(decoder(), ids)
    said = why.generate(decoder(), shortened, max_new_tokens=len(prompt.answer) + 8)
    assert cited.claim.instead == decoder().tokenizer.decode(said.answer_ids).strip()


def test_nothing_is_generated_before_it_is_read(monkeypatch):
    from whyformer._cite import run

    calls = []
    generate = run.generate_tokens
    monkeypatch.setattr(run, "generate_tokens", lambda *given: calls.append(given) or generate(*given))
    cited = why.cite(decoder(), make_prompt(), by=PASSAGES)
    assert not calls
    assert cited.claim.instead == cited.claim.instead and len(calls) == 1


def test_passages_with_the_same_text_are_one_source_in_two_places():
    text = "\n\n".join([PASSAGES[0], PASSAGES[1], PASSAGES[0], QUESTION])
    cited = why.cite(decoder(), text, answer=" good.", effort="thorough")
    assert sorted(one.name for one in cited) == ["passage 1", "passage 2"]
    twice = next(one for one in cited if one.name == "passage 1")
    assert twice.copies == ("passage 3",)
    assert any("passage 1 and passage 3 have the same text" in note for note in cited.notes)
    one = cited.claim.values.get("passage 1")
    if one is not None:
        prompt = cited.prompt
        both = [region for region in prompt.split("passage") if region.text == PASSAGES[0]]
        assert one.log_odds[1] == pytest.approx(log_odds(delete(prompt, *both), len(prompt.answer)), abs=1e-8)


def test_a_part_of_the_answer(cited):
    part = why.cite(decoder(), make_prompt(), by=PASSAGES, select="not bad", **QUICK)
    e = why.explain(decoder(), make_prompt(), CITE_METHOD, target=Answer("not bad", score="log_odds"))
    assert f"log-odds of {part.target.label}" == e.targets[0].label and part.target.label == "'not bad'"
    first = part[0]
    assert first.score == pytest.approx(float(e.scores[0, first.start : first.stop].sum()), abs=1e-9)
    same = why.cite(decoder(), make_prompt(), by=PASSAGES, select=Answer("not bad", score="logp"), **QUICK)
    assert [one.score for one in same] == [one.score for one in part]
    assert part.log_probability > cited.log_probability


@pytest.mark.parametrize("method", ["context_cite", "leave_one_out", "kernel_shap"])
def test_methods_that_remove_words_remove_sources(method):
    prompt = make_prompt()
    c = why.cite(decoder(), prompt, by=PASSAGES, method=method, **QUICK)
    assert c.settings["fill"] == "delete"
    full = log_odds(list(prompt.ids), len(prompt.answer))
    assert c.log_odds == pytest.approx(full, abs=1e-8)
    if method == "leave_one_out":
        expected = [full - log_odds(delete(prompt, one), len(prompt.answer)) for one in c]
        assert [one.score for one in c] == pytest.approx(expected, abs=1e-8)
    if method == "kernel_shap":
        together = full - log_odds(delete(prompt, *c), len(prompt.answer))
        assert sum(one.score for one in c) == pytest.approx(together, abs=1e-8)


def test_text_messages_and_prompts_are_the_same():
    from_text = why.cite(decoder(), TEXT, by=PASSAGES, answer=" good. not bad.", **QUICK)
    fast = why.cite(decoder(), make_prompt(), by=PASSAGES, **QUICK)
    assert [one.score for one in from_text] == [one.score for one in fast]


def test_documents_of_a_chat_are_sources_and_roles_are_apart():
    """Special tokens of the template stay, and so do the text that it adds, the system prompt and the question."""
    messages = [{"role": "system", "content": "be good."}, {"role": "user", "content": "a bad film?"}]
    model = chat_decoder("documents")
    documents = [{"title": "one", "text": "the film is good."}, {"title": "two", "text": "the plot is a mess."}]
    prompt = why.Prompt.from_messages(model, messages, documents=documents, answer="good.")
    for by in ("document", "role"):
        cited = why.cite(model, prompt, by=by, effort="thorough")
        assert sorted(one.name for one in cited) == ["document 1", "document 2"]
        assert [(one.name, one.text) for one in cited.apart] == [("system", "be good."), ("question", "a bad film?")]
    for name, found in cited.claim.values.items():
        one = next(one for one in cited if one.name == name)
        without = [i for place, i in enumerate(prompt.ids) if not one.start <= place < one.stop]
        assert found.log_odds[1] == pytest.approx(log_odds(without, len(prompt.answer), model), abs=1e-8)
    assert why.cite(model, prompt, within="user", by=["a bad", "film"], **QUICK)[0].kind == "passage"


def test_the_question_is_no_source_and_within_narrows_them():
    everything = why.cite(decoder(), make_prompt(), **QUICK)
    assert {one.text for one in everything} == set(PASSAGES)
    assert {one.name for one in everything} == {f"passage {n}" for n in range(1, 5)}
    (question,) = everything.apart
    assert (question.name, question.text, question.role) == ("question", QUESTION, "")
    first_two = "\n\n".join(PASSAGES[:2])
    assert {one.text for one in why.cite(decoder(), make_prompt(), within=first_two, **QUICK)} == set(PASSAGES[:2])
    regions = make_prompt().split(PASSAGES)
    assert {one.name for one in why.cite(decoder(), make_prompt(), by=regions[:3], **QUICK)} == {
        one.name for one in regions[:3]
    }


def test_a_question_listed_as_a_source_is_left_out_up_to_its_last_token():
    """The last token of the prompt is where the answer is read."""
    prompt = make_prompt()
    c = why.cite(decoder(), prompt, by=[*PASSAGES, QUESTION], effort="thorough")
    assert c.apart == ()
    question = next(one for one in c if one.text == QUESTION)
    if found := c.claim.values.get(question.name):
        without = [i for place, i in enumerate(prompt.ids) if not question.start <= place < prompt.prompt_length - 1]
        assert found.log_odds[1] == pytest.approx(log_odds(without, len(prompt.answer)), abs=1e-8)


def test_no_ablation_touches_the_question(monkeypatch):
    """Every run has all tokens of what is apart, and all of the answer."""
    prompt, read = make_prompt(), []
    handle = decoder().module.get_input_embeddings().register_forward_hook(lambda *given: read.append(given[1][0]))
    try:
        with why.engine(rows=1):
            cited = why.cite(decoder(), prompt)
    finally:
        handle.remove()
    (question,) = cited.apart
    tail = list(prompt.ids[question.start :])
    assert len(read) > 8 and all(ids[0, -len(tail) :].tolist() == tail for ids in read)


def test_the_page_begins_with_what_was_measured_and_tells_weights_from_relevance(cited):
    html = make_prompt_page(cited.view())
    assert html.index('id="citations"') < html.index('id="answer"')
    assert html.index(str(cited.claim)) < html.index("<table") and "Where it comes from" in html
    both = why.cite(decoder(), make_prompt(), by=PASSAGES, method=CITE_METHOD)
    assert both.has_fitted_scores and "Relevance of the tokens" in make_prompt_page(both.view())
    fast = why.cite(decoder(), make_prompt(), by=PASSAGES, **QUICK)
    assert not fast.has_fitted_scores and not cited.has_fitted_scores


def test_fast_leaves_nothing_out_and_says_so(monkeypatch):
    def refuse(*given):
        raise AssertionError("something was left out")

    monkeypatch.setattr(Ablations, "ask", refuse)
    c = why.cite(decoder(), make_prompt(), by=PASSAGES, effort="fast")
    assert c.claim.how == "" and c.claim.effect is None and c.claim.instead is None and not c.claim.values
    assert "nothing was left out" in str(c).lower() and c.rests_on == () and {one.role for one in c} == {""}


def test_the_same_twice_and_the_model_unchanged(cited):
    before = {name: value.clone() for name, value in decoder().module.state_dict().items()}
    again = why.cite(decoder(), make_prompt(), by=PASSAGES)
    assert again.citations == cited.citations and again.claim == cited.claim
    assert all(torch.equal(value, before[name]) for name, value in decoder().module.state_dict().items())


# --- refusals ---------------------------------------------------------------------------------------------------------


def wrong(match, **more):
    return pytest.param(more, match, id=match.split(".")[0].replace(" ", "-")[:40])


@pytest.mark.parametrize(
    ("more", "match"),
    [
        wrong("does not occur in the answer", select="Paris"),
        wrong("at least two sources to choose from", by=PASSAGES[:1]),
        wrong("Only passage 1 is there within the given part", within=PASSAGES[0]),
        wrong("has no region 'nowhere'", within="nowhere"),
        wrong("within must be a region", within=7),
        wrong("cannot be split by 'passages'. Did you mean 'passage'", by="passages"),
        wrong("has no roles", by="role"),
        wrong("effort must be one of", effort="most"),
        wrong("No method 'rolout'", method="rolout"),
        wrong("has no setting 'colour'", colour="red"),
        wrong("without versus and weights", select=Answer(versus="bad")),
        wrong("already", answer=" bad."),
    ],
)
def test_what_cannot_be_cited_is_refused(more, match):
    with pytest.raises(WhyformerError, match=match):
        why.cite(decoder(), make_prompt(), **{"by": "passage", **QUICK, **more})


def test_a_prompt_without_an_answer_is_refused_and_the_way_out_works():
    with pytest.raises(InputError, match=r"no answer to cite sources for.*generate\(model, prompt\)"):
        why.cite(decoder(), TEXT)
    written = why.generate(decoder(), TEXT, max_new_tokens=2)
    assert why.cite(decoder(), written, **QUICK).prompt.answer_ids == written.answer_ids
    with pytest.raises(InputError, match=r"answer of this Prompt is empty.*list of messages"):
        why.cite(decoder(), written.without_answer())


def test_odd_prompts_are_refused():
    with pytest.raises(InputError, match="must be a text, a Prompt or a list of messages, got int"):
        why.cite(decoder(), 7)
    with pytest.raises(InputError, match=r"empty|no tokens"):
        why.cite(decoder(), "", answer=" good")
    long = why.cite(decoder(), TEXT, answer=" good" * 200, **QUICK)
    assert "was made for 160 and computes positions beyond" in long.notes[0]


def test_regions_that_do_not_fit_are_refused():
    first, second, *_ = make_prompt().split(PASSAGES)
    for regions, match in (
        ([first, why.Region("late", "other", 5, 900, "")], "tokens are before the answer"),
        ([first, why.Region("twice", "other", first.stop - 1, second.stop, "")], "inside the region before it"),
        ([first, "text"], "regions only"),
        ([first, why.Region("end", "other", make_prompt().prompt_length - 1, make_prompt().prompt_length, "")],
         "last token of the prompt"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=match):
            why.cite(decoder(), make_prompt(), by=regions)


def test_a_classifier_is_refused():
    with pytest.raises((InputError, MethodError, TargetError)):
        why.cite("demo/sentiment", "one line\nanother line", answer=" good")
