"""Verdict: what the figures say, in sentences, each with its evidence; and what each test cannot say.

The words are fixed to the figures by the thresholds below, which are ours. They report what was measured on this data;
they do not say that attention is, or is not, an explanation in general.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from whyformer.audit.agreement import DELETED, GRADIENT, GRADIENT_THROUGH, MASKED, REMOVED

# By the median change of probability, and by the size of tau.
MOVES = ((0.02, "hardly"), (0.1, "slightly"), (0.3, "noticeably"), (2.0, "strongly"))
AGREES = ((0.1, "hardly at all"), (0.3, "weakly"), (0.5, "moderately"), (2.0, "strongly"))
ELSEWHERE = 0.5  # share of the attainable JSD from which other attention counts as quite other
TURNED = 0.05  # share of the draws that change the predicted class, from which it is said
SINK = 0.5  # share of the weight on special tokens worth a sentence

LIMITS = {
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
class Sentence:
    """Something found, and the figures it rests on."""

    test: str
    text: str
    evidence: str


def sentences(name: str, found: Mapping[str, Any]) -> list[Sentence]:
    """What the tests of one attention say."""
    said: list[Sentence] = []
    for test, say in SAID.items():
        if found.get(test):
            said += say(spoken(name), found[test])
    if found.get("adversarial") and found.get("seeds"):
        said += beside_seeds(found)
    return said


def spoken(name: str) -> str:
    """The name of an attention in the middle of a sentence."""
    block, _, part = name.partition(", ")
    if part.startswith("head "):
        return f"{part} of {block}"
    return "the rollout" if name == "rollout" else block


def headline(name: str, found: Mapping[str, Any]) -> str:
    """The shortest answer the figures allow."""
    parts = []
    permutation = ((found.get("replacement") or {}).get("kinds") or {}).get("permutation")
    if permutation is not None:
        change, flips = permutation["change"]["median"], permutation["flips"]["mean"]
        turns = f", though it turns {percent(flips)} of them" if change < 0.1 and flips >= TURNED else ""
        parts.append(
            f"moving its weights to other tokens {word(change, MOVES)} changes most answers ({number(change)}){turns}"
        )
    jsd = (found.get("adversarial") or {}).get("of_attainable", {}).get("mean")
    if jsd is not None:
        far = "quite other" if jsd >= ELSEWHERE else "no very different"
        parts.append(f"{far} attention gives the same answers ({percent(jsd)} of the possible distance)")
    tau = best_agreement(found)
    if tau is not None:
        parts.append(
            f"its order agrees {word(abs(tau), AGREES)} with what leaving tokens out shows (tau {number(tau)})"
        )
    if not parts:
        return f"{capital(name)}: nothing could be measured."
    return f"{capital(name)}: {'; '.join(parts)}."


def best_agreement(found: Mapping[str, Any]) -> float | None:
    for measure in (DELETED, REMOVED, MASKED):
        pair = (found.get("agreement") or {}).get(f"attention ~ {measure}")
        if pair is not None:
            return pair["tau"]["mean"]
    return None


# --- one test at a time -----------------------------------------------------------------------------------------------


def of_agreement(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
    for measure in (GRADIENT, GRADIENT_THROUGH, DELETED, MASKED, REMOVED):
        pair = found.get(f"attention ~ {measure}")
        if pair is None:
            continue
        tau = pair["tau"]
        if tau["mean"] is None:
            yield Sentence(
                "agreement",
                f"Between {name} and {measure} there is no order to compare: one of them is the same for all tokens, "
                "or there are too few.",
                f"undefined for all {tau['undefined']} examples",
            )
            continue
        way = "runs against" if tau["mean"] < -0.1 else f"agrees {word(abs(tau['mean']), AGREES)} with"
        yield Sentence("agreement", f"The order of tokens by {name} {way} {measure}.", tau_evidence(pair))
    yield from beside_yardstick(name, found)


def beside_yardstick(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
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
            yield Sentence(
                "agreement",
                f"Attention agrees with {measure} {how} the gradient does.",
                f"tau {number(own['tau']['mean'])} against {number(yard['tau']['mean'])}",
            )


def of_replacement(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
    if not found["kinds"]:
        yield Sentence(
            "replacement", f"No weight of {name} can be moved: there is one token.", f"{found['undefined']} examples"
        )
        return
    permutation = found["kinds"].get("permutation")
    if permutation is not None:
        change = permutation["change"]
        yield Sentence(
            "replacement",
            f"Permuting {name} moves the predicted probability by {number(change['median'])} in the median: "
            f"{meaning(change['median'], permutation['flips']['mean'])}.",
            f"{interval(change)}; n = {change['n']}; TVD {number(permutation['tvd']['median'])}; the predicted class "
            f"changes in {percent(permutation['flips']['mean'])} of the permutations" + accuracy_said(permutation),
        )
        yield from of_classes(name, permutation)
    uniform = found["kinds"].get("uniform")
    if uniform is not None:
        yield Sentence(
            "replacement",
            f"With equal weights in place of {name} the probability moves by {number(uniform['change']['median'])} "
            "in the median.",
            f"{interval(uniform['change'])}; the predicted class changes for {percent(uniform['flips']['mean'])} "
            "of the examples" + accuracy_said(uniform),
        )


def of_classes(name: str, permutation: Mapping[str, Any]) -> Iterator[Sentence]:
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
        yield Sentence(
            "replacement",
            f"It differs by class: permuting {name} matters more where the answer is {most!r} than where it is "
            f"{least!r}.",
            f"{number(medians[most])} against {number(medians[least])} in the median",
        )


def of_adversarial(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
    jsd, part = found["jsd"], found["of_attainable"]
    if jsd["mean"] is None:
        return
    far = (
        "quite other attention gives practically the same answer"
        if (part["mean"] or 0) >= ELSEWHERE
        else "attention that gives the same answer lies near the model's own"
    )
    yield Sentence(
        "adversarial",
        f"At {name}, {far}: the largest distance found is {number(jsd['mean'])} on average.",
        f"JSD {interval(jsd)}, at most 0.693; {percent(part['mean'])} of what is attainable; n = {jsd['n']}; none "
        f"found for {percent(found['none'])}",
    )


def of_seeds(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
    yield Sentence(
        "seeds",
        f"Trained with {found['checkpoints']} other seeds, the model attends otherwise by a distance of "
        f"{number(found['jsd']['mean'])}.",
        f"JSD {interval(found['jsd'])}; answers differ by a TVD of {number(found['tvd']['mean'])}",
    )


def beside_seeds(found: Mapping[str, Any]) -> Iterator[Sentence]:
    searched, by_seed = found["adversarial"]["jsd"], found["seeds"]["jsd"]
    if searched["mean"] is None or by_seed["mean"] is None:
        return
    how = "farther than" if searched["mean"] > by_seed["mean"] else "no farther than"
    yield Sentence(
        "seeds",
        f"The attention found by search lies {how} what another seed gives anyway.",
        f"JSD {number(searched['mean'])} against {number(by_seed['mean'])}",
    )


def of_diagnostic(name: str, found: Mapping[str, Any]) -> Iterator[Sentence]:
    gain = found["gain"]
    sure = gain["p"] is not None and gain["p"] < 0.05
    how = "better" if sure and gain["mean"] > 0 else "worse" if sure else "neither clearly better nor clearly worse"
    yield Sentence(
        "diagnostic",
        f"A small model that weighs tokens as {name} does answers {how} than one with equal weights.",
        f"{exact(found['attention']['mean'])} right against {exact(found['uniform']['mean'])}; p = "
        f"{number(gain['p'])}; with weights of its own {exact(found['learned']['mean'])}; n = "
        f"{found['attention']['n']}",
    )


SAID = {
    "replacement": of_replacement,
    "adversarial": of_adversarial,
    "agreement": of_agreement,
    "seeds": of_seeds,
    "diagnostic": of_diagnostic,
}


def of_baseline(found: Mapping[str, Any] | None) -> list[Sentence]:
    """Whether the task needs attention at all."""
    if not found:
        return []
    gain = found["gain"]
    sure = gain["p"] is not None and gain["p"] < 0.05
    how = "does worse" if sure and gain["mean"] > 0 else "does better" if sure else "does about as well"
    so = "" if sure and gain["mean"] > 0 else ": this data does not need learned attention"
    return [
        Sentence(
            "baseline",
            f"The same model trained with equal weights in place of attention {how}{so}.",
            f"{exact(found['uniform']['mean'])} right against {exact(found['model']['mean'])}, difference "
            f"{interval(gain)}; p = {number(gain['p'])}; n = {gain['n']}",
        )
    ]


def of_shape(found: Mapping[str, Any] | None) -> list[Sentence]:
    """Sinks, and heads that look the same."""
    if not found:
        return []
    said = []
    blocks = [sum(heads) / len(heads) for heads in found["special"]]
    if max(blocks) >= SINK:
        most = blocks.index(max(blocks))
        said.append(
            Sentence(
                "shape",
                f"Special tokens take {percent(blocks[most])} of the attention of block {most}: much of it goes to "
                "no word or patch at all.",
                f"mean over heads, queries and {found['n']} examples",
            )
        )
    flat = [sum(heads) / len(heads) for heads in found["entropy"]]
    sharpest = "nearly uniform" if min(flat) > 0.9 else f"sharpest in block {flat.index(min(flat))}"
    said.append(
        Sentence(
            "shape",
            f"Attention is {sharpest}.",
            "normalised entropy " + ", ".join(f"block {block}: {value:.2f}" for block, value in enumerate(flat)),
        )
    )
    return said


# --- words ------------------------------------------------------------------------------------------------------------


def meaning(change: float, flips: float | None) -> str:
    """Words for the median change; where answers turn all the same, a median alone would hide it."""
    turned = flips is not None and flips >= TURNED
    if change < 0.02:
        few = "on this data its weights are not what decides"
        return f"{few} for most examples, but some answers turn with them" if turned else few
    if change < 0.1:
        few = "on this data its weights decide little"
        return f"{few} for most examples, but some answers turn with them" if turned else few
    return "on this data its weights matter" if change < 0.3 else "on this data its weights decide"


def word(value: float, words: Any) -> str:
    return next(word for limit, word in words if value < limit)


def number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def exact(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %"


def interval(figure: Mapping[str, Any]) -> str:
    middle = figure["mean"] if "mean" in figure else figure["median"]
    if figure["low"] is None:
        return number(middle)
    return f"{number(middle)} [{number(figure['low'])}, {number(figure['high'])}]"


def tau_evidence(pair: Mapping[str, Any]) -> str:
    tau = pair["tau"]
    undefined = f"; undefined for {tau['undefined']}" if tau["undefined"] else ""
    return (
        f"tau {interval(tau)} ± {number(tau['spread'])}; {percent(pair['significant'])} significant; n = "
        f"{tau['n']}{undefined}; Spearman {number(pair['spearman']['mean'])}, Pearson "
        f"{number(pair['pearson']['mean'])}, overlap of the highest {percent(pair['overlap']['mean'])} (by chance "
        f"{percent(pair['by_chance'])})"
    )


def accuracy_said(kind: Mapping[str, Any]) -> str:
    found = kind["accuracy"]
    return (
        "" if found is None else f"; accuracy {100 * found['before']:.1f} % before, {100 * found['after']:.1f} % after"
    )


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
