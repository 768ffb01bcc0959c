"""The verdict: what the statistics mean, in sentences with their evidence.

The wording depends on thresholds, here and in wording.py, which are our choice. The sentences report what was measured
on this data; they do not claim that attention is, or is not, an explanation in general.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from whyformer._audit.checks import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED
from whyformer._audit.report.summary import Statistics
from whyformer._audit.report.wording import (
    CHANGE_WORDS,
    FLIP_SHARE,
    capitalise_first,
    choose_word,
    compare_ranking,
    format_accuracy,
    format_estimate,
    format_exact_percent,
    format_interval,
    format_percent,
    format_tau_evidence,
    interpret_change,
    is_significant,
)

FAR_SHARE = 0.5  # share of the attainable JSD from which other attention counts as very different
SINK_SHARE = 0.5  # share of the weight on special tokens from which a sentence mentions it
MIN_CLASS_EXAMPLES = 5  # for a sentence about differences between classes


@dataclass(frozen=True)
class VerdictSentence:
    """One finding and its evidence."""

    test: str
    text: str
    evidence: str


def describe_attention_tests(name: str, found: Statistics) -> list[VerdictSentence]:
    """The findings of all tests of one attention."""
    sentences: list[VerdictSentence] = []
    for test, describe in DESCRIBERS.items():
        if found.get(test):
            sentences += describe(name_in_sentence(name), found[test])
    if found.get("adversarial") and found.get("seeds"):
        sentences += compare_with_seeds(found)
    return sentences


def name_in_sentence(name: str) -> str:
    """The name of an attention inside a sentence."""
    block, _, part = name.partition(", ")
    if part.startswith("head "):
        return f"{part} of {block}"
    return "the rollout" if name == "rollout" else block


# --- the headline -----------------------------------------------------------------------------------------------------


def write_audit_headline(name: str, found: Statistics) -> str:
    """The main findings in one sentence."""
    parts = [*summarise_permutation(found), *summarise_search(found), *summarise_ranking(found)]
    return f"{capitalise_first(name)}: {'; '.join(parts) or 'nothing could be measured'}."


def summarise_permutation(found: Statistics) -> Iterator[str]:
    permutation = ((found.get("replacement") or {}).get("kinds") or {}).get("permutation")
    if permutation is None:
        return
    change, flips = permutation["change"]["median"], permutation["flips"]["mean"]
    exception = ""
    if change < 0.1 and flips >= FLIP_SHARE:
        exception = f", though {format_percent(flips)} of the permutations change the predicted class"
    yield (
        f"permuting its weights {choose_word(change, CHANGE_WORDS)} changes most answers "
        f"(median change of the probability {format_estimate(change)}){exception}"
    )


def summarise_search(found: Statistics) -> Iterator[str]:
    search = found.get("adversarial") or {}
    share, none = (search.get("of_attainable") or {}).get("mean"), search.get("none")
    if share is not None:
        evidence = f"distance {format_estimate(share)} of at most 1"
        yield interpret_search(share, none, "the same answers") + (f" ({evidence})" if none != 1 else "")


def interpret_search(share: float | None, none: float | None, answer: str) -> str:
    """What the search found, in words. That it found nothing is no finding about the weights it did not try."""
    if none == 1:
        return f"the search found no other attention weights that give {answer}"
    rest = f", though the search found none for {format_percent(none)} of the examples" if none else ""
    if share is not None and share >= FAR_SHARE:
        return f"very different attention weights give {answer}{rest}"
    return f"the search found no very different attention weights that give {answer}"


def summarise_ranking(found: Statistics) -> Iterator[str]:
    tau = find_leave_one_out_tau(found)
    if tau is not None:
        yield f"its ranking of tokens {compare_ranking(tau)} leave-one-out (tau {format_estimate(tau)})"


def find_leave_one_out_tau(found: Statistics) -> float | None:
    for measure in (DELETED, REMOVED, MASKED):
        pair = (found.get("agreement") or {}).get(f"attention ~ {measure}")
        if pair is not None:
            return pair["tau"]["mean"]
    return None


# --- one test at a time -----------------------------------------------------------------------------------------------


def describe_agreement(name: str, found: Statistics) -> Iterator[VerdictSentence]:
    for measure in (GRADIENT, GRADIENT_THROUGH, DELETED, MASKED, REMOVED):
        pair = found.get(f"attention ~ {measure}")
        if pair is None:
            continue
        tau = pair["tau"]
        if tau["mean"] is None:
            yield VerdictSentence(
                "agreement",
                f"The rankings of tokens by {name} and by {measure} cannot be compared: in every example one of them "
                "is constant, or there are fewer than two tokens.",
                f"undefined for all {tau['undefined']} examples",
            )
        else:
            text = f"The ranking of tokens by {name} {compare_ranking(tau['mean'])} {measure}."
            yield VerdictSentence("agreement", text, format_tau_evidence(pair))
    yield from compare_with_yardstick(found)


def compare_with_yardstick(found: Statistics) -> Iterator[VerdictSentence]:
    """Whether attention agrees with leave-one-out as much as the gradient does."""
    for measure in (DELETED, REMOVED):
        yardstick, own = (found.get(f"{which} ~ {measure}") for which in (GRADIENT, "attention"))
        if not yardstick or not own or yardstick["tau"]["mean"] is None or own["tau"]["mean"] is None:
            continue
        how = "about as much as"
        if is_clearly_below(own["tau"], yardstick["tau"]):
            how = "less than"
        elif is_clearly_below(yardstick["tau"], own["tau"]):
            how = "more than"
        yield VerdictSentence(
            "agreement",
            f"Attention agrees with {measure} {how} the gradient does.",
            f"tau {format_estimate(own['tau']['mean'])} against {format_estimate(yardstick['tau']['mean'])}",
        )


def is_clearly_below(first: Statistics, second: Statistics) -> bool:
    """The intervals do not overlap, and the first is the lower one."""
    return first["high"] is not None and second["low"] is not None and first["high"] < second["low"]


def describe_replacement(name: str, found: Statistics) -> Iterator[VerdictSentence]:
    if not found["kinds"]:
        text = f"No weight of {name} can be moved: there is only one token to attend to."
        yield VerdictSentence("replacement", text, f"{found['undefined']} examples")
        return
    permutation, uniform = found["kinds"].get("permutation"), found["kinds"].get("uniform")
    if permutation is not None:
        yield describe_permutation(name, permutation)
        yield from describe_class_differences(name, permutation)
    if uniform is not None:
        yield describe_uniform(name, uniform)


def describe_permutation(name: str, permutation: Statistics) -> VerdictSentence:
    change, flips = permutation["change"], permutation["flips"]["mean"]
    return VerdictSentence(
        "replacement",
        f"Permuting the weights of {name} changes the predicted probability by {format_estimate(change['median'])} "
        f"(median): {interpret_change(change['median'], flips)}.",
        f"{format_interval(change)}; n = {change['n']}; TVD {format_estimate(permutation['tvd']['median'])}; the "
        f"predicted class changes in {format_percent(flips)} of the permutations" + format_accuracy(permutation),
    )


def describe_uniform(name: str, uniform: Statistics) -> VerdictSentence:
    return VerdictSentence(
        "replacement",
        f"Uniform weights in place of {name} change the predicted probability by "
        f"{format_estimate(uniform['change']['median'])} (median).",
        f"{format_interval(uniform['change'])}; the predicted class changes for "
        f"{format_percent(uniform['flips']['mean'])} of the examples" + format_accuracy(uniform),
    )


def describe_class_differences(name: str, permutation: Statistics) -> Iterator[VerdictSentence]:
    """Classes that differ, which an average over them would hide."""
    medians = {
        label: group["change"]["median"]
        for label, group in permutation["classes"].items()
        if group["change"]["n"] >= MIN_CLASS_EXAMPLES and group["change"]["median"] is not None
    }
    if len(medians) < 2:
        return
    least, most = min(medians, key=lambda k: medians[k]), max(medians, key=lambda k: medians[k])
    if medians[most] >= 0.05 and medians[most] >= 2 * medians[least]:
        yield VerdictSentence(
            "replacement",
            f"Classes differ: permuting {name} matters more for the predicted class {most!r} than for {least!r}.",
            f"median change {format_estimate(medians[most])} against {format_estimate(medians[least])}",
        )


def describe_adversarial(name: str, found: Statistics) -> Iterator[VerdictSentence]:
    jsd, share = found["jsd"], found["of_attainable"]
    if jsd["mean"] is None:
        return
    far = "" if found["none"] == 1 else f": the largest distance found is {format_estimate(jsd['mean'])} on average"
    yield VerdictSentence(
        "adversarial",
        f"At {name}, {interpret_search(share['mean'], found['none'], 'practically the same answer')}{far}.",
        f"JSD {format_interval(jsd)}, at most 0.693; {format_percent(share['mean'])} of the attainable distance; "
        f"n = {jsd['n']}; none found for {format_percent(found['none'])} of the examples",
    )


def describe_seeds(name: str, found: Statistics) -> Iterator[VerdictSentence]:
    yield VerdictSentence(
        "seeds",
        f"Training with other seeds changes {name} by a distance of {format_estimate(found['jsd']['mean'])} on "
        "average.",
        f"JSD {format_interval(found['jsd'])}; TVD of the answers {format_estimate(found['tvd']['mean'])}; "
        f"checkpoints: {found['checkpoints']}",
    )


def compare_with_seeds(found: Statistics) -> Iterator[VerdictSentence]:
    by_search, by_seed = found["adversarial"]["jsd"], found["seeds"]["jsd"]
    if by_search["mean"] is None or by_seed["mean"] is None or found["adversarial"]["none"] == 1:
        return
    how = "farther" if by_search["mean"] > by_seed["mean"] else "no farther"
    yield VerdictSentence(
        "seeds",
        f"The attention found by the search is {how} from the model's own than that of other seeds.",
        f"JSD {format_estimate(by_search['mean'])} against {format_estimate(by_seed['mean'])}",
    )


def describe_diagnostic(name: str, found: Statistics) -> Iterator[VerdictSentence]:
    gain = found["gain"]
    how = "not significantly different in accuracy from"
    if is_significant(gain):
        how = "more accurate than" if gain["mean"] > 0 else "less accurate than"
    yield VerdictSentence(
        "diagnostic",
        f"A small model that weights tokens by {name} is {how} one with uniform weights.",
        f"accuracy {format_exact_percent(found['attention']['mean'])} against "
        f"{format_exact_percent(found['uniform']['mean'])}; p = {format_estimate(gain['p'])}; with learned weights "
        f"{format_exact_percent(found['learned']['mean'])}; n = {found['attention']['n']}",
    )


DESCRIBERS = {
    "replacement": describe_replacement,
    "adversarial": describe_adversarial,
    "agreement": describe_agreement,
    "seeds": describe_seeds,
    "diagnostic": describe_diagnostic,
}


# --- all attention of the model ---------------------------------------------------------------------------------------


def describe_baseline(found: Statistics | None) -> list[VerdictSentence]:
    """Whether the task needs attention at all."""
    if not found:
        return []
    gain = found["gain"]
    how = "is not significantly different in accuracy: this does not show that the data needs learned attention"
    if is_significant(gain) and gain["mean"] > 0:
        how = "is less accurate"
    elif is_significant(gain):
        how = "is more accurate: the data does not need learned attention"
    return [
        VerdictSentence(
            "baseline",
            f"The same model trained with uniform attention {how}.",
            f"accuracy {format_exact_percent(found['uniform']['mean'])} against "
            f"{format_exact_percent(found['model']['mean'])}, difference {format_interval(gain)}; "
            f"p = {format_estimate(gain['p'])}; n = {gain['n']}",
        )
    ]


def describe_shape(found: Statistics | None) -> list[VerdictSentence]:
    """Attention sinks, and how sharp the attention is."""
    if not found:
        return []
    sentences = []
    special = [sum(heads) / len(heads) for heads in found["special"]]
    if max(special) >= SINK_SHARE:
        block = special.index(max(special))
        sentences.append(
            VerdictSentence(
                "shape",
                f"Special tokens receive {format_percent(special[block])} of the attention of block {block}, so much "
                "of it does not go to any word or patch.",
                f"mean over heads, queries and {found['n']} examples",
            )
        )
    flat = [sum(heads) / len(heads) for heads in found["entropy"]]
    sharpness = "nearly uniform" if min(flat) > 0.9 else f"sharpest in block {flat.index(min(flat))}"
    by_block = ", ".join(f"block {block}: {value:.2f}" for block, value in enumerate(flat))
    sentences.append(VerdictSentence("shape", f"Attention is {sharpness}.", f"normalised entropy {by_block}"))
    return sentences
