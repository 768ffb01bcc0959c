"""`make test-real`: what the verbs say on real models, checked against the model itself.

PYTHONPATH=evaluation python -m real.verbs [names] [--only VERB ...]

Each check is right, refused (with the reason that a person would read) or wrong. Results are stored after each model;
those that no check gives any more are dropped.
"""

import argparse
import copy
import json
import math
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr

import whyformer as why
from real.cases import ENCODERS, LANGUAGE_MODELS, SPEECH, Case
from whyformer.metrics import comprehensiveness

RESULTS = Path(__file__).parent / "results" / "verbs.json"
BUDGETS = {
    "kernel_shap": {"budget": 16}, "lime": {"budget": 16}, "context_cite": {"budget": 16}, "rise": {"budget": 16},
    "partition_shap": {"budget": 16}, "vit_cx": {"budget": 4}, "integrated_gradients": {"most_steps": 8},
    "smooth_grad": {"samples": 2}, "bi_attribution": {"steps": 2},
}  # fmt: skip
PASSAGES = "The Aurora carries tea.\n\nThe fair opens in May.\n\nWhat does the Aurora carry?\nAnswer:"
CLOSE = 1e-3  # of the largest score


class Refused(Exception):
    """The verb does not apply; the message says why."""


def find_worst(found: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest expected number."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return float((torch.as_tensor(found, dtype=torch.float64) - expected).abs().max() / expected.abs().max())


def check_default(case: Case) -> str:
    e = why.explain(case.model, case.texts[0])
    assert bool(e.scores.isfinite().all()), "scores are not finite"
    assert bool(e.scores.any()), f"{e.method} gives 0 to every word"
    return f"{e.method}, {e.targets[0].label[:40]}"


def check_batch(case: Case, side: str = "right") -> str:
    """Two texts of different lengths in a batch score as each alone; if not, so does the plain model."""
    model, texts = case.model, case.texts
    usual, model.tokenizer.padding_side = model.tokenizer.padding_side, side
    try:
        together = why.explain(model, list(texts), "attnlrp")
        is_alike = case.is_encoder_decoder or case.name in SPEECH or answers_alike(case)
    finally:
        model.tokenizer.padding_side = usual
    worst = 0.0
    for row, text in enumerate(texts):
        own = together.scores[row][~torch.tensor(together.tokens[row].padding)]
        worst = max(worst, find_worst(own, why.explain(model, text, "attnlrp").scores[0]))
    if worst >= CLOSE and not is_alike:
        raise Refused(f"padded on the {side}, the model itself answers otherwise")
    assert worst < CLOSE, f"differs by {worst:.2g} of the largest score"
    return f"within {worst:.1g}" + ("" if is_alike else "; the plain model answers otherwise")


def answers_alike(case: Case) -> bool:
    """Whether the plain model gives a padded text what it gives the text alone."""
    keys, short = ("input_ids", "attention_mask"), case.texts[1]
    with torch.no_grad():
        padded = case.model.tokenizer(list(case.texts), return_tensors="pt", padding=True)
        outputs = [case.module(**{key: batch[key] for key in keys}) for batch in (padded, case.tokenize(short))]
    both, one = (one if isinstance(one, torch.Tensor) else next(iter(one.values())) for one in outputs)
    own = both[1][padded["attention_mask"][1].bool()] if both.dim() == 3 else both[1]
    return bool((own - one[0]).abs().max() < CLOSE * one.abs().max())


def check_removal(case: Case) -> str:
    """Leave-one-out, beside the plain model without each token."""
    e = case.explain(case.texts[0], "leave_one_out", fill=case.hiding)
    free = case.find_free(case.texts[0], e)
    whole = case.read(case.texts[0])
    by_hand = [whole - case.read(case.texts[0], [n]) for n in free]
    worst = find_worst(e.scores[0, free], by_hand)
    assert worst < CLOSE, f"differs by {worst:.2g} of the largest score"
    return f"{len(free)} tokens within {worst:.1g}, {case.hiding}"


def check_sum(case: Case) -> str:
    """Shapley values add up to the explained number of the text minus that without any of its tokens."""
    how = "pad" if case.name in LANGUAGE_MODELS else case.hiding  # without any token there is no next one
    e = case.explain(case.texts[0], "kernel_shap", budget=64, fill=how)
    players = [n for n in range(e.scores.shape[1]) if float(e.scores[0, n])]
    expected = case.read(case.texts[0]) - case.read(case.texts[0], players, how)
    worst = abs(float(e.scores[0].sum()) - expected) / max(abs(expected), 1e-6)
    assert worst < CLOSE, f"the scores add up to {float(e.scores[0].sum())}, the model's numbers differ by {expected}"
    return f"{len(players)} tokens, within {worst:.1g}"


def check_doctor(case: Case) -> str:
    """Each method that there is does in `explain` what the doctor says of it: works, or is refused."""
    found, working, refused = why.diagnose(case.model, case.texts[0]), 0, []
    for method in why.METHODS:
        said, reason = found[method], ""
        try:
            e = why.explain(case.model, case.texts[0], method, **BUDGETS.get(method, {}))
        except why.WhyformerError as error:
            reason = str(error) or "refused"
        happened = ("refused", "does not apply") if reason else ("works",)
        assert said.state in happened, f"{method}: {said.state} by the doctor ({said.reason}), explain: {reason}"
        assert reason or bool(e.scores.isfinite().all()), f"{method}: scores are not finite"
        working += not reason
        refused += [f"{method} ({reason[:90]})"] if reason else []
    return f"{working} of {len(why.METHODS)} work" + (f"; refused: {'; '.join(refused)}" if refused else "")


def check_judge(case: Case) -> str:
    """A metric of a method and of its control: finite numbers for both."""
    metric = partial(comprehensiveness, fill=case.hiding)
    found = why.judge(
        case.model, list(case.texts), ["attnlrp", "chance"], [metric], target=case.target, report=False
    )  # fmt: skip
    means = {line.method: line.mean for line in found.table.lines}
    assert set(means) >= {"attnlrp", "chance"} and all(math.isfinite(one) for one in means.values()), found
    return ", ".join(f"{name} {value:.3g}" for name, value in means.items())


def check_audit(case: Case) -> str:
    """Other attention in the last layer: the report says what became of the answers."""
    found = why.audit(case.model, list(case.texts), tests=["replacement"], samples=4, limit=2)
    lines = str(found).splitlines()
    assert lines, "the audit says nothing"
    return lines[0][:90]


def check_bulk(case: Case) -> str:
    """Rows of `bulk` are what `explain` says, and the summary counts them."""
    with tempfile.TemporaryDirectory() as folder:
        run = why.bulk(
            case.model, list(case.texts), ["attnlrp"], out=Path(folder) / "run", target=case.target, batch_size=1
        )
        assert not run.failed, list(run.errors())
        rows = run.records()
        alone = [case.explain_alone(text, "attnlrp").scores[0] for text in case.texts]
        worst = max(find_worst(row["scores"], one[: len(row["scores"])]) for row, one in zip(rows, alone, strict=True))
        assert worst < CLOSE, f"a row differs by {worst:.2g}"
        summary = why.summarise_bulk(run.folder, test=False)
        return f"{len(rows)} rows; {str(summary).splitlines()[0][:60]}"


def check_cite(case: Case) -> str:
    """What the answer rests on, and its log-odds without the first passage, by the model on the ids without it."""
    prompt = why.Prompt.from_text(case.model, PASSAGES, " tea")
    found = why.cite(case.model, prompt, effort="thorough")
    first = prompt.split("passage")[0]
    kept = [token for place, token in enumerate(prompt.ids) if not first.start <= place < first.stop]
    with torch.no_grad():
        shares = case.module(torch.tensor([kept])).logits[0].double().log_softmax(-1)
    answer = range(len(kept) - len(prompt.answer), len(kept))
    log_p = [float(shares[place - 1, kept[place]]) for place in answer]
    by_hand = sum(one - math.log(-math.expm1(one)) for one in log_p)
    said = found.claim.values.get("passage 1")
    if said is None:
        raise Refused(f"the claim has no value for the first passage: {found.claim}")
    assert abs(said.log_odds[1] - by_hand) < 1e-2, (said.log_odds, by_hand)
    return f"{found.claim}; without passage 1 log-odds {by_hand:.2f}"


def check_trace(case: Case) -> str:
    """Hops over written steps: finite relevance, not all zero."""
    prompt = why.Prompt.from_text(case.model, case.texts[0], " First, think. So it is Paris.")
    found = why.trace_reasoning(case.model, prompt, hops=2)
    scores = torch.cat([hop.scores for hop in found])
    assert bool(scores.isfinite().all()) and bool(scores.any()), "relevance is not finite, or 0"
    return str(found).splitlines()[0][:90]


def check_serve(case: Case) -> str:
    """The page's answer to a request for this model: the scores of `explain`, and a page that loads nothing."""
    from whyformer._page import bodies
    from whyformer._page.answers.explaining import answer_explain
    from whyformer._page.answers.inputs import PageQuestion

    asked = {"targets": [str(case.target)]} if case.target else {}
    body = bodies.ExplainBody(model=0, input={"text": case.texts[0]}, methods=["attnlrp"], **asked).model_dump()
    answer = answer_explain(PageQuestion(case.model, body, {}), lambda *_: None)
    e = case.explain_alone(case.texts[0], "attnlrp")
    shown = answer["maps"][0]["scores"]["token"]
    worst = find_worst(shown, e.scores[0][: len(shown)])
    assert worst < CLOSE, f"the page differs by {worst:.2g}"
    page = why.Explanation.formats[".html"](e).decode()
    assert "<script src" not in page and len(page) > 1000
    return f"{len(shown)} scores within {worst:.1g}, a page of {len(page) // 1000} kB"


def check_precision(case: Case) -> str:
    """Scores in bfloat16 rank the tokens as those in float32."""
    wide = why.explain(case.model, case.texts[0], "attnlrp").scores[0]
    reader = {"tokenizer": case.model.tokenizer}
    if case.name in SPEECH:
        reader = {"processor": case.model.feature_extractor}
    halved = why.open(copy.deepcopy(case.module).to(torch.bfloat16), **reader)
    narrow = why.explain(halved, case.texts[0], "attnlrp").scores[0]
    correlation = float(spearmanr(wide, narrow.float()).statistic)
    assert correlation > 0.8, f"rank correlation {correlation:.2f}"
    return f"rank correlation {correlation:.3f}"


def check_similarity(case: Case) -> str:
    """The score of two texts; of a classifier of pairs, its logit."""
    score = "cosine" if case.name in ENCODERS else "pair"
    found = why.explain_similarity(case.model, *case.texts, score=score, matrix=None)
    with torch.no_grad():
        if case.name in ENCODERS:
            states = [case.module(**case.tokenize(text)).last_hidden_state[0].mean(0) for text in case.texts]
            by_hand = float(torch.cosine_similarity(*states, dim=0))
        else:
            pair = case.model.tokenizer(*case.texts, return_tensors="pt")
            by_hand = float(case.module(**pair).logits.amax())
    assert abs(found.score - by_hand) < 1e-4, f"{found.score} is not {by_hand}"
    return f"{found.score:.4f}, by hand {by_hand:.4f}"


def check_generation(case: Case) -> str:
    """Greedy tokens are those of the model, and the first token's explanation is that of the prompt alone."""
    g = why.explain_generation(case.model, case.texts[0], "attnlrp", max_new_tokens=4)
    asked = case.tokenize(case.texts[0])
    own = case.module.generate(**asked, max_new_tokens=4, do_sample=False)[0]
    own = own[1:] if case.is_encoder_decoder else own[asked["input_ids"].shape[1] :]
    written, expected = "".join(g.words), case.model.tokenizer.decode(own, skip_special_tokens=True)
    assert written.strip() and expected.replace(" ", "").startswith(written.replace(" ", "")), (written, expected)
    alone = case.explain(case.texts[0], "attnlrp").scores[0]
    worst = find_worst(g[0].scores[0][: len(alone)], alone)
    assert worst < CLOSE, f"the first token differs by {worst:.2g}"
    return f"writes {written!r}, first token within {worst:.1g}"


def check_heard_generation(case: Case) -> str:
    """A prompt is a text: what is written of a sound is explained token by token with `explain`."""
    why.explain_generation(case.model, case.texts[0], max_new_tokens=2)
    return "works"


Check = Callable[[Case], str]
COMMON: dict[str, Check] = {
    "explain": check_default, "batch": check_batch, "left padding": partial(check_batch, side="left"),
    "removal by hand": check_removal, "sum": check_sum, "every method": check_doctor,
    "bfloat16": check_precision, "judge": check_judge, "audit": check_audit, "bulk, summary": check_bulk,
    "serve": check_serve,
}  # fmt: skip
MORE: dict[str, dict[str, Check]] = {
    **{name: {"similarity": check_similarity} for name in (*ENCODERS, "nli")},
    **{name: {"generation": check_generation, "cite": check_cite, "trace": check_trace} for name in LANGUAGE_MODELS},
    "titles": {"generation": check_generation},
}
# Of a sound every check takes minutes: one method, and what is refused.
HEARD: dict[str, Check] = {
    "explain": check_default, "batch": check_batch, "bfloat16": check_precision, "bulk, summary": check_bulk,
    "generation": check_heard_generation,
}  # fmt: skip
NAMES = (*ENCODERS, "nli", "tagger", "harms", "injections", "titles", *LANGUAGE_MODELS, *SPEECH)


def run_check(check: Check, case: Case) -> dict[str, str]:
    try:
        return {"state": "right", "detail": check(case)}
    except (why.WhyformerError, Refused) as error:
        return {"state": "refused", "detail": str(error)[:300]}
    except Exception as error:
        traceback.print_exc(limit=-2)
        return {"state": "wrong", "detail": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--only", nargs="*", help="these verbs; the others stay as they are stored")
    options = parser.parse_args()
    wrong = 0
    for name in options.names or NAMES:
        case, checks = Case.open(name), HEARD if name in SPEECH else {**COMMON, **MORE.get(name, {})}
        stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found = {verb: one for verb, one in stored.get(name, {}).items() if verb in checks}
        for verb, check in checks.items():
            if options.only is None or verb in options.only:
                found[verb] = run_check(check, case)
                wrong += found[verb]["state"] == "wrong"
                print(f"{name:12}{verb:16}{found[verb]['state']:9}{found[verb]['detail']}", flush=True)
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stored[name] = {verb: found[verb] for verb in checks if verb in found}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
