"""Words for the numbers of an audit. The thresholds are our choice."""

from collections.abc import Sequence

from whyformer._audit.checks import SIGNIFICANCE_LEVEL
from whyformer._audit.report.summary import Statistics

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
