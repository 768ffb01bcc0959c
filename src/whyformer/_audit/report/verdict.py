"""The verdict: what the statistics mean, in sentences with their evidence.

The wording depends on thresholds, which are our choice. The sentences report what was measured
on this data; they do not claim that attention is, or is not, an explanation in general.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from whyformer._audit.checks import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED, SIGNIFICANCE_LEVEL
from whyformer._audit.report.summary import MIN_CLASS_EXAMPLES, Statistics, look_up

FAR_SHARE = 0.5  # share of the attainable JSD from which other attention counts as very different
SINK_SHARE = 0.5  # share of the weight on special tokens from which a sentence mentions it

Sentences = Iterator[tuple[str, str]]  # text, evidence


@dataclass(frozen=True)
class VerdictSentence:
    """One finding and its evidence."""

    test: str
    text: str
    evidence: str


def describe_attention_tests(name: str, found: Statistics) -> list[VerdictSentence]:
    """The findings of all tests of one attention."""
    tests = [(test, describe(name_in_sentence(name), found[test])) for test, describe in DESCRIBERS if found.get(test)]
    if found.get("adversarial") and found.get("seeds"):
        tests.append(("seeds", compare_with_seeds(found)))
    return [VerdictSentence(test, *sentence) for test, sentences in tests for sentence in sentences]


def describe_model_tests(baseline: Statistics | None, shape: Statistics | None) -> list[VerdictSentence]:
    """The findings about all attention of the model."""
    tests = {"baseline": describe_baseline(baseline), "shape": describe_shape(shape)}
    return [VerdictSentence(test, *sentence) for test, sentences in tests.items() for sentence in sentences]


def name_in_sentence(name: str) -> str:
    """The name of an attention inside a sentence."""
    block, _, part = name.partition(", ")
    if part.startswith("head "):
        return f"{part} of {block}"
    return "the rollout" if name == "rollout" else block


# --- the headline -----------------------------------------------------------------------------------------------------


def write_audit_headline(name: str, found: Statistics, shape: Statistics | None = None) -> str:
    """The main findings in one sentence."""
    findings = [*describe_evenness(find_entropy(name, shape)), *list_main_findings(found)]
    return f"{capitalise_first(name)}: {'; '.join(findings) or 'nothing could be measured'}."


def find_entropy(name: str, shape: Statistics | None) -> float | None:
    """The normalised entropy of an attention, over all its queries; of a mean of heads their mean, which is less."""
    named = re.match(r"block (\d+)(?:, head (\d+))?", name)
    blocks = [] if shape is None else shape["entropy"]
    heads = blocks[int(named[1])] if named is not None and int(named[1]) < len(blocks) else []
    if named is not None and named[2] is not None:
        heads = heads[int(named[2]) :][:1]
    return float(sum(heads) / len(heads)) if heads else None


def describe_evenness(entropy: float | None) -> Iterator[str]:
    if entropy is not None and entropy >= EVEN:
        yield f"nearly even over the tokens (normalised entropy {entropy:.2f}), so that there is little to rank"


def list_main_findings(found: Statistics) -> Iterator[str]:
    permutation = look_up(found, "replacement.kinds.permutation")
    if permutation is not None:
        change, flips = permutation["change"]["median"], permutation["flips"]["mean"]
        exception = ""
        if change < 0.1 and flips >= FLIP_SHARE:
            exception = f", though {format_percent(flips)} of the permutations change the prediction"
        yield (
            f"permuting its weights {choose_word(change, CHANGE_WORDS)} changes most answers "
            f"(median change of the probability {format_estimate(change)}){exception}"
        )
    share, none = look_up(found, "adversarial.of_attainable.mean"), look_up(found, "adversarial.none")
    if share is not None:
        evidence = f"distance {format_estimate(share)} of at most 1"
        yield interpret_search(share, none, "the same answers") + (f" ({evidence})" if none != 1 else "")
    left_out = [f"agreement.attention ~ {measure}" for measure in (DELETED, REMOVED, MASKED)]
    tau = look_up(look_up(found, " | ".join(left_out)), "tau")
    if look_up(tau, "mean") is not None:
        yield f"its ranking of tokens {compare_ranking(tau)} leave-one-out ({format_tau(tau)})"


def interpret_search(share: float | None, none: float | None, answer: str) -> str:
    """What the search found, in words. That it found nothing is no finding about the weights it did not try."""
    if none == 1:
        return f"the search found no other attention weights that give {answer}"
    rest = f", though the search found none for {format_percent(none)} of the examples" if none else ""
    if share is not None and share >= FAR_SHARE:
        return f"very different attention weights give {answer}{rest}"
    return f"the search found no very different attention weights that give {answer}"


# --- one test at a time -----------------------------------------------------------------------------------------------


def describe_agreement(name: str, found: Statistics) -> Sentences:
    for measure in (GRADIENT, GRADIENT_THROUGH, DELETED, MASKED, REMOVED):
        pair = found.get(f"attention ~ {measure}")
        if pair is None:
            continue
        tau = pair["tau"]
        if tau["mean"] is None:
            text = (
                f"The rankings of tokens by {name} and by {measure} cannot be compared: in every example one of them "
                "is constant, or there are fewer than two tokens."
            )
            yield text, f"undefined for all {tau['undefined']} examples"
        else:
            text = f"The ranking of tokens by {name} {compare_ranking(tau)} {measure}."
            yield text, format_tau_evidence(pair)
    for measure in (DELETED, REMOVED):
        own, yardstick = (look_up(found, f"{which} ~ {measure}.tau") for which in ("attention", GRADIENT))
        if look_up(own, "mean") is not None and look_up(yardstick, "mean") is not None:
            how = "less than" if is_clearly_below(own, yardstick) else "about as much as"
            how = "more than" if is_clearly_below(yardstick, own) else how
            yield (
                f"Attention agrees with {measure} {how} the gradient does.",
                f"tau {format_estimate(own['mean'])} against {format_estimate(yardstick['mean'])}",
            )


def is_clearly_below(first: Statistics, second: Statistics) -> bool:
    """The intervals do not overlap, and the first is the lower one."""
    return first["high"] is not None and second["low"] is not None and first["high"] < second["low"]


def describe_replacement(name: str, found: Statistics) -> Sentences:
    if not found["kinds"]:
        text = f"No weight of {name} can be moved: there is only one token to attend to."
        yield text, f"{found['undefined']} examples"
    permutation, uniform = found["kinds"].get("permutation"), found["kinds"].get("uniform")
    if permutation is not None:
        change, flips = permutation["change"], permutation["flips"]["mean"]
        yield (
            f"Permuting the weights of {name} changes the predicted probability by {format_estimate(change['median'])} "
            f"(median): {interpret_change(change['median'], flips)}.",
            f"{format_estimate_interval(change)}; n = {change['n']}; TVD "
            f"{format_estimate(permutation['tvd']['median'])}; the prediction changes in {format_percent(flips)} "
            f"of the permutations" + format_accuracy(permutation),
        )
        yield from describe_class_differences(name, permutation)
    if uniform is not None:
        yield (
            f"Uniform weights in place of {name} change the predicted probability by "
            f"{format_estimate(uniform['change']['median'])} (median).",
            f"{format_estimate_interval(uniform['change'])}; the prediction changes for "
            f"{format_percent(uniform['flips']['mean'])} of the examples" + format_accuracy(uniform),
        )


def describe_class_differences(name: str, permutation: Statistics) -> Sentences:
    """Classes that differ, which an average over them would hide."""
    medians = {
        label: group["change"]["median"]
        for label, group in permutation["classes"].items()
        if group["change"]["n"] >= MIN_CLASS_EXAMPLES and group["change"]["median"] is not None
    }
    if len(medians) < 2:
        return
    least, most = min(medians, key=lambda k: medians[k]), max(medians, key=lambda k: medians[k])
    p = permutation["classes_p"]
    is_certain = p is not None and p < SIGNIFICANCE_LEVEL
    if is_certain and medians[most] >= 0.05 and medians[most] >= 2 * medians[least]:
        yield (
            f"Classes differ: permuting {name} matters more for the predicted class {most!r} than for {least!r}.",
            f"median change {format_estimate(medians[most])} against {format_estimate(medians[least])}; Kruskal-Wallis "
            f"test of all classes, p = {format_estimate(p)}",
        )


def describe_adversarial(name: str, found: Statistics) -> Sentences:
    jsd, share = found["jsd"], found["of_attainable"]["mean"]
    if jsd["mean"] is None:
        return
    far = "" if found["none"] == 1 else f": the largest distance found is {format_estimate(jsd['mean'])} on average"
    yield (
        f"At {name}, {interpret_search(share, found['none'], 'practically the same answer')}{far}.",
        f"JSD {format_estimate_interval(jsd)}, at most 0.693; {format_percent(share)} of the attainable distance; "
        f"n = {jsd['n']}; none found for {format_percent(found['none'])} of the examples",
    )


def describe_adversary(name: str, found: Statistics) -> Sentences:
    if found["jsd"]["mean"] is None:
        return
    accuracy = look_up(found, "accuracy.mean")
    labelled = "" if accuracy is None else (
        f"; accuracy {format_exact_percent(accuracy)}, its own {format_exact_percent(found['own_accuracy']['mean'])}"
    )  # fmt: skip
    yield (
        f"One model, trained to attend elsewhere at {name}, gives the same prediction for "
        f"{format_percent(found['same']['mean'])} of the examples, with attention at a distance of "
        f"{format_estimate(found['jsd']['mean'])} on average.",
        f"JSD {format_estimate_interval(found['jsd'])}, at most 0.693; "
        f"{format_percent(found['of_attainable']['mean'])} of the attainable distance; TVD of the answers "
        f"{format_estimate_interval(found['tvd'])}; n = {found['jsd']['n']}, none of them trained on{labelled}",
    )


def describe_seeds(name: str, found: Statistics) -> Sentences:
    yield (
        f"Training with other seeds changes {name} by a distance of {format_estimate(found['jsd']['mean'])} on "
        "average.",
        f"JSD {format_estimate_interval(found['jsd'])}; TVD of the answers {format_estimate(found['tvd']['mean'])}; "
        f"checkpoints: {found['checkpoints']}",
    )


def compare_with_seeds(found: Statistics) -> Sentences:
    by_search, by_seed = (found[test]["jsd"] for test in ("adversarial", "seeds"))
    if by_search["mean"] is not None and by_seed["mean"] is not None and found["adversarial"]["none"] != 1:
        how = "not significantly farther from, or nearer to, the model's own than that of other seeds"
        if is_clearly_below(by_seed, by_search):
            how = "farther from the model's own than that of other seeds"
        elif is_clearly_below(by_search, by_seed):
            how = "nearer to the model's own than that of other seeds"
        yield (
            f"The attention found by the search is {how}.",
            f"JSD {format_estimate_interval(by_search)} against {format_estimate_interval(by_seed)}",
        )


def describe_diagnostic(name: str, found: Statistics) -> Sentences:
    gain = found["gain"]
    how = interpret_gain(
        gain, "more accurate than", "less accurate than", "not significantly different in accuracy from"
    )
    yield (
        f"A small model that weights tokens by {name} is {how} one with uniform weights.",
        f"accuracy {format_exact_percent(found['attention']['mean'])} against "
        f"{format_exact_percent(found['uniform']['mean'])}; p = {format_estimate(gain['p'])}; with learned weights "
        f"{format_exact_percent(found['learned']['mean'])}; n = {found['attention']['n']}",
    )


DESCRIBERS: tuple[tuple[str, Callable[[str, Statistics], Sentences]], ...] = (
    ("replacement", describe_replacement),
    ("adversarial", describe_adversarial),
    ("agreement", describe_agreement),
    ("adversary", describe_adversary),
    ("seeds", describe_seeds),
    ("diagnostic", describe_diagnostic),
)


# --- all attention of the model ---------------------------------------------------------------------------------------


def describe_baseline(found: Statistics | None) -> Sentences:
    """Whether the task needs attention at all."""
    if not found:
        return
    gain = found["gain"]
    how = interpret_gain(
        gain,
        "is less accurate",
        "is more accurate: the data does not need learned attention",
        "is not significantly different in accuracy: this does not show that the data needs learned attention",
    )
    yield (
        f"The same model trained with uniform attention {how}.",
        f"accuracy {format_exact_percent(found['uniform']['mean'])} against "
        f"{format_exact_percent(found['model']['mean'])}, difference {format_estimate_interval(gain)}; "
        f"p = {format_estimate(gain['p'])}; n = {gain['n']}",
    )


def describe_shape(found: Statistics | None) -> Sentences:
    """Attention sinks, and how sharp the attention is."""
    if not found:
        return
    special, flat = ([sum(heads) / len(heads) for heads in found[what]] for what in ("special", "entropy"))
    if max(special) >= SINK_SHARE:
        block = special.index(max(special))
        yield (
            f"Special tokens receive {format_percent(special[block])} of the attention of block {block}, so much "
            "of it does not go to any word or patch.",
            f"mean over heads, queries and {found['n']} examples",
        )
    sharpness = "nearly uniform" if min(flat) > 0.9 else f"sharpest in block {flat.index(min(flat))}"
    by_block = ", ".join(f"block {block}: {value:.2f}" for block, value in enumerate(flat))
    yield f"Attention is {sharpness}.", f"normalised entropy {by_block}"


# --- words for numbers ------------------------------------------------------------------------------------------------


# By the median change of probability, and by the absolute value of tau: below the number, the word.
CHANGE_WORDS = ((0.02, "hardly"), (0.1, "slightly"), (0.3, "noticeably"), (2.0, "strongly"))
AGREEMENT_WORDS = ((0.1, "hardly at all"), (0.3, "weakly"), (0.5, "moderately"), (2.0, "strongly"))
EVEN = 0.95  # normalised entropy from which attention is nearly even
MOST_NEEDED = 100_000  # examples; where more would be needed, none are advised
FLIP_SHARE = 0.05  # share of the draws that change the prediction, from which a sentence mentions it


def interpret_change(change: float, flips: float | None) -> str:
    """The median change in words. A median alone would hide predictions that change for a part of the examples."""
    text = f"on this data the answers {choose_word(change, CHANGE_WORDS)} depend on the order of these weights"
    if change < 0.1 and flips is not None and flips >= FLIP_SHARE:
        return f"{text} for most examples, but some predictions change with them"
    return text


def compare_ranking(tau: Statistics) -> str:
    """A verb for the agreement of two rankings, by the size of tau and its interval."""
    if tau["low"] is None:
        return f"was compared on {tau['n']} example only with"
    if tau["low"] <= 0 <= tau["high"]:
        return "has no significant relation to"
    word = choose_word(abs(tau["mean"]), AGREEMENT_WORDS)
    return f"agrees {word} with" if tau["mean"] > 0 else f"runs {word} the other way from that by"


def format_tau(tau: Statistics) -> str:
    """Tau with its interval and its examples; if that tells nothing, how many more would, if tau stayed the same."""
    if tau["low"] is None:
        return f"tau {format_estimate(tau['mean'])}, n = {tau['n']}"
    text = f"tau {tau['mean']:z.2f}, 95 % {tau['low']:z.2f} to {tau['high']:z.2f}, n = {tau['n']}"
    if tau["low"] <= 0 <= tau["high"] and tau["mean"]:
        needed = tau["n"] * ((tau["high"] - tau["low"]) / 2 / tau["mean"]) ** 2
        text += f"; about {needed:.0f} examples would tell" if needed < MOST_NEEDED else ""
    return text


def choose_word(value: float, words: Sequence[tuple[float, str]]) -> str:
    return next(word for limit, word in words if value < limit)


def interpret_gain(gain: Statistics, better: str, worse: str, unclear: str) -> str:
    if gain["p"] is None or gain["p"] >= SIGNIFICANCE_LEVEL:
        return unclear
    return better if gain["mean"] > 0 else worse


def format_estimate(value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value:z.2f}"


def format_percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def format_exact_percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %"


def format_estimate_interval(figure: Statistics) -> str:
    middle = format_estimate(figure["mean"] if "mean" in figure else figure["median"])
    ends = f" [{format_estimate(figure['low'])}, {format_estimate(figure['high'])}]"
    return middle if figure["low"] is None else middle + ends


def format_tau_evidence(pair: Statistics) -> str:
    tau = pair["tau"]
    undefined = f"; undefined for {tau['undefined']}" if tau["undefined"] else ""
    spearman, pearson = (format_estimate(pair[measure]["mean"]) for measure in ("spearman", "pearson"))
    return (
        f"tau {format_estimate_interval(tau)} ± {format_estimate(tau['spread'])}; "
        f"{format_percent(pair['significant'])} significant; n = {tau['n']}{undefined}; "
        f"Spearman {spearman}, Pearson {pearson}, overlap of the highest "
        f"{format_percent(pair['overlap']['mean'])} (by chance {format_percent(pair['by_chance'])})"
    )


def format_accuracy(kind: Statistics) -> str:
    accuracy = kind["accuracy"]
    if accuracy is None:
        return ""
    return (
        f"; accuracy {100 * accuracy['before']:.1f} % before, {100 * accuracy['after']:.1f} % after, "
        f"{accuracy['f1']} F1 {accuracy['f1_before']:.3f} before, {accuracy['f1_after']:.3f} after"
    )


def capitalise_first(text: str) -> str:
    return text[:1].upper() + text[1:]
