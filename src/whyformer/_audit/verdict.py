"""Verdict: what the figures say, in sentences, each with its evidence; and what each test cannot say.

The words are fixed to the figures by the thresholds below, which are ours. They report what was measured on this data;
they do not say that attention is, or is not, an explanation in general.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from whyformer._audit.agreement import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED

# By the median change of probability, and by the size of tau.
CHANGE_WORDS = ((0.02, "hardly"), (0.1, "slightly"), (0.3, "noticeably"), (2.0, "strongly"))
AGREEMENT_WORDS = ((0.1, "hardly at all"), (0.3, "weakly"), (0.5, "moderately"), (2.0, "strongly"))
FAR_SHARE = 0.5  # share of the attainable JSD from which other attention counts as quite other
FLIP_SHARE = 0.05  # share of the draws that change the predicted class, from which it is said
SINK_SHARE = 0.5  # share of the weight on special tokens worth a sentence

TEST_LIMITS = {
    "agreement": (
        "Gradients and leaving tokens out are measures of importance, not the truth: they disagree with each other "
        "too, and the yardstick shows how much. Kendall's tau counts the order of unimportant tokens as much as "
        "that of important ones. Behind an encoder a token's place also holds what its neighbours say, so weight on "
        "a place is not weight on a word."
    ),
    "replacement": (
        "An answer that stays the same does not show that the attention is idle: values may be alike, the model may "
        "go around this attention through others or through the skip connection. An answer that changes shows that "
        "the weights matter to the computation, not that a reader understands the answer from them. Replaced "
        "weights are weights the model never produces."
    ),
    "adversarial": (
        "The other attention is made for one example, by hand, with all else fixed; no trained model need ever "
        "produce it (Wiegreffe & Pinter, 2019). That another attention would have given the same answer does not "
        "show that this one was not used. A search that finds nothing does not show that there is nothing."
    ),
    "seeds": (
        "Different seeds give different models; that they attend differently may mean that there are several ways "
        "to solve the task, each truly used."
    ),
    "diagnostic": (
        "The small model is trained on few examples and sees tokens one by one. Attention of a strong model may "
        "carry the answer itself (where it looks depends on what it will say), which helps the small model without "
        "explaining anything."
    ),
    "baseline": (
        "That a model can be trained without attention does not show that this one, trained with it, does not use "
        "it. Where equal weights do as well, the other tests say little about attention as such (Wiegreffe & "
        "Pinter, 2019)."
    ),
    "shape": "How sharp attention is says nothing about whether it matters; this section is a description.",
}  # fmt: skip


@dataclass(frozen=True)
class VerdictSentence:
    """Something found, and the figures it rests on."""

    test: str
    text: str
    evidence: str


def describe_attention_tests(name: str, found: Mapping[str, Any]) -> list[VerdictSentence]:
    """What the tests of one attention say."""
    said: list[VerdictSentence] = []
    for test, say in DESCRIBERS.items():
        if found.get(test):
            said += say(name_in_sentence(name), found[test])
    if found.get("adversarial") and found.get("seeds"):
        said += compare_with_seeds(found)
    return said


def name_in_sentence(name: str) -> str:
    """The name of an attention in the middle of a sentence."""
    block, _, part = name.partition(", ")
    if part.startswith("head "):
        return f"{part} of {block}"
    return "the rollout" if name == "rollout" else block


def write_audit_headline(name: str, found: Mapping[str, Any]) -> str:
    """The shortest answer the figures allow."""
    parts = []
    permutation = ((found.get("replacement") or {}).get("kinds") or {}).get("permutation")
    if permutation is not None:
        change, flips = permutation["change"]["median"], permutation["flips"]["mean"]
        turns = f", though it turns {format_percent(flips)} of them" if change < 0.1 and flips >= FLIP_SHARE else ""
        parts.append(
            f"moving its weights to other tokens {choose_word(change, CHANGE_WORDS)} changes most answers "
            f"({format_estimate(change)}){turns}"
        )
    jsd = (found.get("adversarial") or {}).get("of_attainable", {}).get("mean")
    if jsd is not None:
        far = "quite other" if jsd >= FAR_SHARE else "no very different"
        parts.append(f"{far} attention gives the same answers ({format_percent(jsd)} of the possible distance)")
    tau = find_best_agreement(found)
    if tau is not None:
        parts.append(
            f"its order agrees {choose_word(abs(tau), AGREEMENT_WORDS)} with what leaving tokens out shows (tau "
            f"{format_estimate(tau)})"
        )
    if not parts:
        return f"{capitalise_first(name)}: nothing could be measured."
    return f"{capitalise_first(name)}: {'; '.join(parts)}."


def find_best_agreement(found: Mapping[str, Any]) -> float | None:
    for measure in (DELETED, REMOVED, MASKED):
        pair = (found.get("agreement") or {}).get(f"attention ~ {measure}")
        if pair is not None:
            return pair["tau"]["mean"]
    return None


# --- one test at a time -----------------------------------------------------------------------------------------------


def describe_agreement(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    for measure in (GRADIENT, GRADIENT_THROUGH, DELETED, MASKED, REMOVED):
        pair = found.get(f"attention ~ {measure}")
        if pair is None:
            continue
        tau = pair["tau"]
        if tau["mean"] is None:
            yield VerdictSentence(
                "agreement",
                f"Between {name} and {measure} there is no order to compare: one of them is the same for all tokens, "
                "or there are too few.",
                f"undefined for all {tau['undefined']} examples",
            )
            continue
        way = "runs against" if tau["mean"] < -0.1 else f"agrees {choose_word(abs(tau['mean']), AGREEMENT_WORDS)} with"
        yield VerdictSentence("agreement", f"The order of tokens by {name} {way} {measure}.", format_tau_evidence(pair))
    yield from compare_with_yardstick(name, found)


def compare_with_yardstick(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    for measure in (DELETED, REMOVED):
        yard, own = found.get(f"{GRADIENT} ~ {measure}"), found.get(f"attention ~ {measure}")
        if yard and own and yard["tau"]["mean"] is not None and own["tau"]["mean"] is not None:
            less = (
                own["tau"]["high"] is not None
                and yard["tau"]["low"] is not None
                and own["tau"]["high"] < yard["tau"]["low"]
            )
            more = (
                own["tau"]["low"] is not None
                and yard["tau"]["high"] is not None
                and own["tau"]["low"] > yard["tau"]["high"]
            )
            how = "less than" if less else "more than" if more else "about as much as"
            yield VerdictSentence(
                "agreement",
                f"Attention agrees with {measure} {how} the gradient does.",
                f"tau {format_estimate(own['tau']['mean'])} against {format_estimate(yard['tau']['mean'])}",
            )


def describe_replacement(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    if not found["kinds"]:
        yield VerdictSentence(
            "replacement", f"No weight of {name} can be moved: there is one token.", f"{found['undefined']} examples"
        )
        return
    permutation = found["kinds"].get("permutation")
    if permutation is not None:
        change = permutation["change"]
        yield VerdictSentence(
            "replacement",
            f"Permuting {name} moves the predicted probability by {format_estimate(change['median'])} in the median: "
            f"{interpret_change(change['median'], permutation['flips']['mean'])}.",
            f"{format_interval(change)}; n = {change['n']}; TVD {format_estimate(permutation['tvd']['median'])}; the "
            "predicted class "
            f"changes in {format_percent(permutation['flips']['mean'])} of the permutations"
            + format_accuracy(permutation),
        )
        yield from describe_class_differences(name, permutation)
    uniform = found["kinds"].get("uniform")
    if uniform is not None:
        yield VerdictSentence(
            "replacement",
            f"With equal weights in place of {name} the probability moves by "
            f"{format_estimate(uniform['change']['median'])} "
            "in the median.",
            f"{format_interval(uniform['change'])}; the predicted class changes for "
            f"{format_percent(uniform['flips']['mean'])} "
            "of the examples" + format_accuracy(uniform),
        )


def describe_class_differences(name: str, permutation: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    """Where classes differ, an average over them would hide it."""
    medians = {
        label: one["change"]["median"]
        for label, one in permutation["classes"].items()
        if one["change"]["n"] >= 5 and one["change"]["median"] is not None
    }
    if len(medians) < 2:
        return
    least, most = min(medians, key=lambda k: medians[k]), max(medians, key=lambda k: medians[k])
    if medians[most] >= 0.05 and medians[most] >= 2 * medians[least]:
        yield VerdictSentence(
            "replacement",
            f"It differs by class: permuting {name} matters more where the answer is {most!r} than where it is "
            f"{least!r}.",
            f"{format_estimate(medians[most])} against {format_estimate(medians[least])} in the median",
        )


def describe_adversarial(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    jsd, part = found["jsd"], found["of_attainable"]
    if jsd["mean"] is None:
        return
    far = (
        "quite other attention gives practically the same answer"
        if (part["mean"] or 0) >= FAR_SHARE
        else "attention that gives the same answer lies near the model's own"
    )
    yield VerdictSentence(
        "adversarial",
        f"At {name}, {far}: the largest distance found is {format_estimate(jsd['mean'])} on average.",
        f"JSD {format_interval(jsd)}, at most 0.693; {format_percent(part['mean'])} of what is attainable; n = "
        f"{jsd['n']}; none "
        f"found for {format_percent(found['none'])}",
    )


def describe_seeds(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    yield VerdictSentence(
        "seeds",
        f"Trained with {found['checkpoints']} other seeds, the model attends otherwise by a distance of "
        f"{format_estimate(found['jsd']['mean'])}.",
        f"JSD {format_interval(found['jsd'])}; answers differ by a TVD of {format_estimate(found['tvd']['mean'])}",
    )


def compare_with_seeds(found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    searched, by_seed = found["adversarial"]["jsd"], found["seeds"]["jsd"]
    if searched["mean"] is None or by_seed["mean"] is None:
        return
    how = "farther than" if searched["mean"] > by_seed["mean"] else "no farther than"
    yield VerdictSentence(
        "seeds",
        f"The attention found by search lies {how} what another seed gives anyway.",
        f"JSD {format_estimate(searched['mean'])} against {format_estimate(by_seed['mean'])}",
    )


def describe_diagnostic(name: str, found: Mapping[str, Any]) -> Iterator[VerdictSentence]:
    gain = found["gain"]
    sure = gain["p"] is not None and gain["p"] < 0.05
    how = "better" if sure and gain["mean"] > 0 else "worse" if sure else "neither clearly better nor clearly worse"
    yield VerdictSentence(
        "diagnostic",
        f"A small model that weighs tokens as {name} does answers {how} than one with equal weights.",
        f"{format_exact_percent(found['attention']['mean'])} right against "
        f"{format_exact_percent(found['uniform']['mean'])}; p = "
        f"{format_estimate(gain['p'])}; with weights of its own {format_exact_percent(found['learned']['mean'])}; n = "
        f"{found['attention']['n']}",
    )


DESCRIBERS = {
    "replacement": describe_replacement,
    "adversarial": describe_adversarial,
    "agreement": describe_agreement,
    "seeds": describe_seeds,
    "diagnostic": describe_diagnostic,
}


def describe_baseline(found: Mapping[str, Any] | None) -> list[VerdictSentence]:
    """Whether the task needs attention at all."""
    if not found:
        return []
    gain = found["gain"]
    sure = gain["p"] is not None and gain["p"] < 0.05
    how = "does worse" if sure and gain["mean"] > 0 else "does better" if sure else "does about as well"
    so = "" if sure and gain["mean"] > 0 else ": this data does not need learned attention"
    return [
        VerdictSentence(
            "baseline",
            f"The same model trained with equal weights in place of attention {how}{so}.",
            f"{format_exact_percent(found['uniform']['mean'])} right against "
            f"{format_exact_percent(found['model']['mean'])}, difference "
            f"{format_interval(gain)}; p = {format_estimate(gain['p'])}; n = {gain['n']}",
        )
    ]


def describe_shape(found: Mapping[str, Any] | None) -> list[VerdictSentence]:
    """Sinks, and heads that look the same."""
    if not found:
        return []
    said = []
    blocks = [sum(heads) / len(heads) for heads in found["special"]]
    if max(blocks) >= SINK_SHARE:
        most = blocks.index(max(blocks))
        said.append(
            VerdictSentence(
                "shape",
                f"Special tokens take {format_percent(blocks[most])} of the attention of block {most}: much of it "
                "goes to "
                "no word or patch at all.",
                f"mean over heads, queries and {found['n']} examples",
            )
        )
    flat = [sum(heads) / len(heads) for heads in found["entropy"]]
    sharpest = "nearly uniform" if min(flat) > 0.9 else f"sharpest in block {flat.index(min(flat))}"
    said.append(
        VerdictSentence(
            "shape",
            f"Attention is {sharpest}.",
            "normalised entropy " + ", ".join(f"block {block}: {value:.2f}" for block, value in enumerate(flat)),
        )
    )
    return said


# --- words ------------------------------------------------------------------------------------------------------------


def interpret_change(change: float, flips: float | None) -> str:
    """Words for the median change; where answers turn all the same, a median alone would hide it."""
    turned = flips is not None and flips >= FLIP_SHARE
    if change < 0.02:
        few = "on this data its weights are not what decides"
        return f"{few} for most examples, but some answers turn with them" if turned else few
    if change < 0.1:
        few = "on this data its weights decide little"
        return f"{few} for most examples, but some answers turn with them" if turned else few
    return "on this data its weights matter" if change < 0.3 else "on this data its weights decide"


def choose_word(value: float, words: Any) -> str:
    return next(word for limit, word in words if value < limit)


def format_estimate(value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def format_percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def format_exact_percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %"


def format_interval(figure: Mapping[str, Any]) -> str:
    middle = figure["mean"] if "mean" in figure else figure["median"]
    if figure["low"] is None:
        return format_estimate(middle)
    return f"{format_estimate(middle)} [{format_estimate(figure['low'])}, {format_estimate(figure['high'])}]"


def format_tau_evidence(pair: Mapping[str, Any]) -> str:
    tau = pair["tau"]
    undefined = f"; undefined for {tau['undefined']}" if tau["undefined"] else ""
    return (
        f"tau {format_interval(tau)} ± {format_estimate(tau['spread'])}; {format_percent(pair['significant'])} "
        "significant; n = "
        f"{tau['n']}{undefined}; Spearman {format_estimate(pair['spearman']['mean'])}, Pearson "
        f"{format_estimate(pair['pearson']['mean'])}, overlap of the highest "
        f"{format_percent(pair['overlap']['mean'])} (by chance "
        f"{format_percent(pair['by_chance'])})"
    )


def format_accuracy(kind: Mapping[str, Any]) -> str:
    found = kind["accuracy"]
    return (
        "" if found is None else f"; accuracy {100 * found['before']:.1f} % before, {100 * found['after']:.1f} % after"
    )


def capitalise_first(text: str) -> str:
    return text[:1].upper() + text[1:]
