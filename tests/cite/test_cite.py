"""cite: scores are summed tokens, drops are those of the model asked by hand, and what cannot be cited is refused."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_prompts import PASSAGES, QUESTION, TEXT, chat_decoder, decoder, make_prompt

import whyformer as why
from whyformer._cite.ablations import Ablations
from whyformer._cite.effort import describe_effort
from whyformer._cite.run import CITE_METHOD
from whyformer._cite.sources import find_sources, make_source_players
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


@pytest.fixture(scope="module")
def cited():
    return why.cite(decoder(), make_prompt(), by=PASSAGES)


def test_scores_and_drops_written_slowly(cited):
    prompt = make_prompt()
    e = why.explain(decoder(), prompt, CITE_METHOD, target=Answer(score="log_odds"))
    answer = len(prompt.answer)
    assert cited.log_probability == pytest.approx(log_probability(list(prompt.ids), answer), abs=1e-9)
    full = log_odds(list(prompt.ids), answer)
    assert cited.log_odds == pytest.approx(full, abs=1e-9)
    assert any(one.drop is not None for one in cited) and all(one.text in PASSAGES for one in cited)
    thorough = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough")
    assert all(one.drop is not None for one in thorough)
    for one in thorough:
        assert one.drop == pytest.approx(full - log_odds(delete(prompt, one), answer), abs=1e-8)
    assert [one.score for one in cited] == sorted((one.score for one in cited), reverse=True)
    assert sum(abs(one.share) for one in cited) == pytest.approx(1)
    fast = why.cite(decoder(), prompt, by=PASSAGES, **QUICK)
    for one in fast:
        assert one.score == pytest.approx(float(e.scores[0, one.start : one.stop].sum()), abs=1e-9)
    total = sum(one.score for one in fast) + fast.rest
    assert total == pytest.approx(float(e.scores.sum()), abs=1e-9)
    assert sum(abs(one.share) for one in fast) + abs(fast.rest) / sum(
        [*(abs(one.score) for one in fast), abs(fast.rest)]
    ) == pytest.approx(1)


def test_the_model_reads_no_more_tokens_than_the_cost_says(monkeypatch):
    """Counted at the embedding, of an answer that the model gives itself; the backward pass counts as two forwards."""
    from whyformer._cite import run

    prompt, read = make_prompt(), []
    measure_likelihood = run.measure_likelihood
    monkeypatch.setattr(run, "measure_likelihood", lambda *given: replace(measure_likelihood(*given), rival=None))
    why.cite(decoder(), prompt, by=PASSAGES)  # what is tried out once is not counted
    handle = decoder().module.get_input_embeddings().register_forward_hook(lambda _, given, __: read.append(given[0]))
    try:
        with why.engine(rows=1):  # without padding
            cost = why.cite(decoder(), prompt, by=PASSAGES).spent["cost"]
    finally:
        handle.remove()
    forwards = sum(ids.numel() for ids in read) / len(prompt.ids)
    assert forwards + 2 <= cost + 1e-9 <= 12 + 1e-9 and forwards > 3


@pytest.mark.parametrize("plan", [True, False])
def test_the_probabilities_come_from_the_forward_of_the_relevance_pass(is_planned):
    """The model reads the whole prompt once. Log-odds, probabilities and ablations are those of runs of their own."""
    prompt, read = make_prompt(" good"), []
    with why.engine(plan=is_planned):
        why.cite(decoder(), prompt, by=PASSAGES, effort="fast")  # what is tried out once is not counted
        handle = decoder().module.get_input_embeddings().register_forward_hook(lambda *given: read.append(given[1][0]))
        try:
            fast = why.cite(decoder(), prompt, by=PASSAGES, effort="fast")
        finally:
            handle.remove()
        assert [ids.numel() for ids in read] == [len(prompt.ids)] and fast.spent["cost"] == 3
        thorough = why.cite(decoder(), prompt, by=PASSAGES, effort="thorough")
    with torch.no_grad():
        scores = decoder().module(torch.tensor([prompt.ids])).logits[0].double().log_softmax(-1)
    place = prompt.answer[0]
    log_p = float(scores[place - 1, prompt.ids[place]])
    assert fast.log_probability == pytest.approx(log_p, abs=1e-5)
    assert fast.log_odds == pytest.approx(log_p - math.log1p(-math.exp(log_p)), abs=1e-4)
    one = next(one for one in thorough if one.drop is not None)
    regions = find_sources(prompt, PASSAGES, None).sources
    without = torch.tensor([[region.start != one.start for region in regions]])
    with torch.no_grad():
        kept = make_source_players(prompt, regions).keep(without)[0]
        logits = decoder().module(torch.tensor(prompt.ids)[kept][None]).logits[0, -2].double()
    others = logits.clone()
    others[prompt.ids[place]] = -math.inf
    left = float(logits[prompt.ids[place]] - others.logsumexp(0))
    assert one.drop == pytest.approx(fast.log_odds - left, abs=1e-4)


@pytest.mark.parametrize("plan", [True, False])
def test_the_order_of_selected_tokens_does_not_matter(is_planned):
    with why.engine(plan=is_planned):
        found = [why.cite(decoder(), make_prompt(), by=PASSAGES, select=[*some]) for some in ((0, 3), (3, 0))]
    assert found[0].log_probability == found[1].log_probability and found[0].support == found[1].support


def test_what_a_method_runs_itself_is_announced():
    assert describe_effort("fast", own_runs="context_cite").endswith("counted as three, and those of context_cite")


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
    c = why.cite(decoder(), prompt, by=PASSAGES, method=method)
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
    first = next(one for one in cited if one.drop is not None)
    without = [i for place, i in enumerate(prompt.ids) if not first.start <= place < first.stop]
    count = len(prompt.answer)
    drop = log_odds(list(prompt.ids), count, model) - log_odds(without, count, model)
    assert first.drop == pytest.approx(drop, abs=1e-8)
    assert why.cite(model, prompt, within="user", by=["a bad", "film"], **QUICK)[0].kind == "passage"


def test_the_question_is_no_source_and_within_narrows_them():
    everything = why.cite(decoder(), make_prompt(), **QUICK)
    assert {one.text for one in everything} == set(PASSAGES)
    assert {one.name for one in everything} == {f"passage {n}" for n in range(1, 5)}
    (question,) = everything.apart
    assert (question.name, question.text, question.drop, question.verdict) == ("question", QUESTION, None, None)
    first_two = "\n\n".join(PASSAGES[:2])
    assert {one.text for one in why.cite(decoder(), make_prompt(), within=first_two, **QUICK)} == set(PASSAGES[:2])
    regions = make_prompt().split(PASSAGES)
    assert {one.name for one in why.cite(decoder(), make_prompt(), by=regions[:3], **QUICK)} == {
        one.name for one in regions[:3]
    }


def test_a_question_that_is_listed_as_a_source_is_one_up_to_the_last_token():
    """The last token of the prompt is where the answer is read."""
    prompt = make_prompt()
    c = why.cite(decoder(), prompt, by=[*PASSAGES, QUESTION], method="leave_one_out")
    assert c.apart == ()
    question = next(one for one in c if one.text == QUESTION)
    without = [i for place, i in enumerate(prompt.ids) if not question.start <= place < prompt.prompt_length - 1]
    full = log_odds(list(prompt.ids), len(prompt.answer))
    assert question.score == pytest.approx(full - log_odds(without, len(prompt.answer)), abs=1e-8)


def test_random_ablations_never_touch_the_question(monkeypatch):
    """What every variant keeps: all tokens of what is apart."""
    prompt, asked = make_prompt(), []
    ask = Ablations.ask

    def watch(ablations, keep):
        asked.append(ablations.players.keep(keep))
        return ask(ablations, keep)

    monkeypatch.setattr(Ablations, "ask", watch)
    cited = why.cite(decoder(), prompt, effort="thorough")
    (question,) = cited.apart
    kept = torch.cat([keep[:, : question.stop] for keep in asked])  # the rival's prompt may be shorter
    assert len(kept) > 8 and bool(kept[:, question.start : question.stop].all())
    assert not bool(kept[:, cited[0].start : cited[0].stop].all())


def test_the_page_begins_with_the_verdict_and_tells_fitted_scores_from_sums(cited):
    page = cited.view()
    html = make_prompt_page(page)
    assert page.has_fitted_scores and html.index('id="citations"') < html.index('id="answer"')
    said, table = html.index(str(cited.support)), html.index("<table")
    assert said < table and "Relevance of the tokens" in html and "its weight in a linear model" in html
    for more in (QUICK, {"method": "leave_one_out"}):
        plain = why.cite(decoder(), make_prompt(), by=PASSAGES, **more)
        html = make_prompt_page(plain.view())
        assert not plain.has_fitted_scores and "linear model" not in html and "Where it comes from" in html


def test_fast_leaves_nothing_out():
    c = why.cite(decoder(), make_prompt(), by=PASSAGES, effort="fast")
    assert c.margin is None and c.together is None and c.faithfulness is None
    assert all(one.drop is None and one.verdict is None and not one.is_control for one in c)
    assert "No source was left out" in str(c) and c.supported == () and c.support.drop is None


def test_the_same_twice_and_the_model_unchanged(cited):
    before = {name: value.clone() for name, value in decoder().module.state_dict().items()}
    again = why.cite(decoder(), make_prompt(), by=PASSAGES)
    assert again.citations == cited.citations and again.faithfulness == cited.faithfulness
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
        wrong("seed must be a whole number", seed=0.5),
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
