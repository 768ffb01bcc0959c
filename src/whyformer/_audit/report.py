"""The report of an audit: one self-contained HTML page, every chart with the numbers behind it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whyformer._audit.agreement import DELETED, GRADIENT, REMOVED
from whyformer._audit.distance import LARGEST_JSD
from whyformer._audit.result import Audit
from whyformer._audit.summary import group_by_largest_weight
from whyformer._audit.verdict import TEST_LIMITS, VerdictSentence
from whyformer.show import charts
from whyformer.show import report as html
from whyformer.show.drawing import Drawing
from whyformer.show.report import Html

TEST_TITLES = {
    "agreement": "Does it rank tokens as measures of importance do?",
    "replacement": "What if the weights are moved?",
    "adversarial": "Is there other attention with the same answer?",
    "seeds": "How much does it change with the seed?",
    "diagnostic": "Does it help a model that cannot look around?",
}
STYLE = """
.charts { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.charts figure { flex: 0 1 auto; width: auto; max-width: 100%; }
h3 { margin-top: 2rem; }
"""
MOST_IN_FULL = 6  # attention in question that get sections of their own; of more, a table


def make_audit_page(audit: Audit) -> str:
    """The whole page."""
    names = list(audit.attention)
    content = [make_verdict_section(audit)]
    contents = {"verdict": "Verdict"}
    if len(names) > 1:
        content.append(html.make_section("Side by side", *tabulate_attention(audit), anchor="all"))
        contents["all"] = "Side by side"
    for place, name in enumerate(names[:MOST_IN_FULL]):
        anchor = f"attention-{place}"
        contents[anchor] = name[:1].upper() + name[1:]
        content.append(
            html.make_section(
                contents[anchor], *make_attention_blocks(audit, name), remark=audit.said[place], anchor=anchor
            )
        )
    if audit.summary["shape"]:
        content.append(html.make_section("What the attention looks like", *chart_shape(audit), anchor="shape"))
        contents["shape"] = "Shape"
    content.append(html.make_section("How this was measured", *list_audit_settings(audit), anchor="how"))
    contents["how"] = "How"
    lead = f"{audit.model} on {len(audit)} examples of {audit.data}. Questioned: {', '.join(names[:MOST_IN_FULL])}" + (
        f" and {len(names) - MOST_IN_FULL} more." if len(names) > MOST_IN_FULL else "."
    )
    about = {"model": audit.model, **audit.versions}
    title = "Is attention an explanation here?"
    return html.make_page(title, content, lead=lead, about=about, contents=contents, style=STYLE)


def arrange_charts(drawn: Sequence[Drawing]) -> Html:
    """Charts beside each other, as many as fit."""
    return html.make_element("div", *(html.embed_drawing(one) for one in drawn), class_="charts")


def make_verdict_section(audit: Audit) -> Html:
    parts: list[Any] = []
    for name in audit.attention[:MOST_IN_FULL]:
        parts.append(html.make_element("p", html.make_element("strong", audit.headlines[name])))
    parts.append(list_sentences(audit.sentences[""]))
    if audit.summary["baseline"]:
        parts.append(html.make_element("p", "Limits: " + TEST_LIMITS["baseline"], class_="dim"))
    if audit.notes:
        parts.append(html.make_notes(audit.notes))
    return html.make_section("Verdict", *parts, anchor="verdict")


def list_sentences(sentences: Sequence[VerdictSentence]) -> Html | None:
    if not sentences:
        return None
    items = [
        html.make_element("li", one.text, " ", html.make_element("span", one.evidence, class_="dim"))
        for one in sentences
    ]
    return html.make_element("ul", *items)


def make_attention_blocks(audit: Audit, name: str) -> Iterator[Any]:
    found = audit.summary["attention"][name]
    for test, title in TEST_TITLES.items():
        if not found.get(test):
            continue
        yield html.make_element("h3", title)
        yield list_sentences([one for one in audit.sentences[name] if one.test == test])
        yield from CHARTS[test](audit, name, found[test])
        yield html.make_element("p", "Limits: " + TEST_LIMITS[test], class_="dim")


# --- agreement --------------------------------------------------------------------------------------------------------


def chart_agreement(audit: Audit, name: str, found: Mapping[str, Any]) -> Iterator[Any]:
    rows = audit.of("agreement", name)
    taus = {
        pair: [row["pairs"][pair]["tau"] for row in rows if row["pairs"].get(pair, {}).get("tau") is not None]
        for pair in found
    }
    shown = [pair for pair in found if len(taus[pair]) > 2 and is_main_pair(pair)]
    if shown:
        drawn = charts.draw_densities(
            {pair: taus[pair] for pair in shown}, title="Agreement over examples", xlabel="Kendall's tau",
            between=(-1.0, 1.0), reference=0.0,
        )  # fmt: skip
        yield html.embed_drawing(drawn)
    head = ["", "tau", "95 %", "spread", "significant", "Spearman", "Pearson", "overlap", "by chance", "n", "undefined"]
    table = [
        [pair, one["tau"]["mean"], format_bounds(one["tau"]), one["tau"]["spread"], one["significant"],
         one["spearman"]["mean"], one["pearson"]["mean"], one["overlap"]["mean"], one["by_chance"],
         one["tau"]["n"], one["tau"]["undefined"]]
        for pair, one in found.items()
    ]  # fmt: skip
    yield html.make_table(head, table, caption="Agreement, means over examples")
    classes = [
        [pair, label, group["mean"], group["spread"], group["significant"], group["n"]]
        for pair, one in found.items()
        if is_main_pair(pair)
        for label, group in one["classes"].items()
        if group["n"]
    ]
    head = ["", "predicted", "tau", "spread", "significant", "n"]
    yield html.fold_content(
        "By predicted class", html.make_table(head, classes, caption="Agreement by predicted class")
    )


def is_main_pair(pair: str) -> bool:
    """Drawn: attention against the measures, and the yardstick."""
    return pair.startswith("attention ~ ") or pair in (f"{GRADIENT} ~ {DELETED}", f"{GRADIENT} ~ {REMOVED}")


# --- replacement ------------------------------------------------------------------------------------------------------


def chart_replacement(audit: Audit, name: str, found: Mapping[str, Any]) -> Iterator[Any]:
    rows = [row for row in audit.of("replacement", name) if not row.get("undefined")]
    if not rows:
        return
    kinds = list(found["kinds"])
    drawn = []
    if "permutation" in kinds:
        groups = {
            label: [row["kinds"]["permutation"]["tvd"] for row in group]
            for label, group in group_by_largest_weight(rows).items()
        }
        drawn.append(
            charts.draw_violins(groups, title="Permuted, by the largest weight", ylabel="median TVD of the answer")
        )
    every = {kind: [row["kinds"][kind]["tvd"] for row in rows if kind in row["kinds"]] for kind in kinds}
    drawn.append(charts.draw_violins(every, title="By replacement", ylabel="TVD of the answer"))
    yield arrange_charts(drawn)
    head = ["replacement", "change", "95 %", "TVD", "class changes", "right before", "right after", "n"]
    table = [
        [kind, one["change"]["median"], format_bounds(one["change"]), one["tvd"]["median"], one["flips"]["mean"],
         (one["accuracy"] or {}).get("before"), (one["accuracy"] or {}).get("after"), one["change"]["n"]]
        for kind, one in found["kinds"].items()
    ]  # fmt: skip
    caption = "Change of the predicted probability and of the answer, medians over examples"
    yield html.make_table(head, table, caption=caption)
    permutation = found["kinds"].get("permutation")
    if permutation is None:
        return
    bins = list(permutation["bins"])
    lines = [["all", *(format_bin_cell(permutation["bins"].get(one)) for one in bins)]]
    lines += [
        [label, *(format_bin_cell(group["bins"].get(one)) for one in bins)]
        for label, group in permutation["classes"].items()
    ]
    table_of_bins = html.make_table(
        ["predicted", *bins], lines, caption="Median TVD (examples) by the largest weight, permuted"
    )
    yield html.fold_content("By class and largest weight", table_of_bins)
    if found["undefined"]:
        yield html.make_notes([f"{found['undefined']} examples have no weight that can be moved and were left out."])


def format_bin_cell(figure: Mapping[str, Any] | None) -> str | None:
    return None if figure is None or figure["median"] is None else f"{figure['median']:.3f} ({figure['n']})"


# --- other attention --------------------------------------------------------------------------------------------------


def chart_adversarial(audit: Audit, name: str, found: Mapping[str, Any]) -> Iterator[Any]:
    rows = [row for row in audit.of("adversarial", name) if not row.get("undefined")]
    if not rows:
        return
    values = {"found": [row["jsd"] for row in rows], "attainable": [row["attainable"] for row in rows]}
    searched = {row["example"] for row in rows}
    by_seed = [value for row in audit.of("seeds", name) if row["example"] in searched for value in row["jsd"]]
    groups = values | ({"other seeds": by_seed} if by_seed else {})
    drawn = [
        charts.draw_histogram(groups, title="Distance of other attention", xlabel="JSD", reference=LARGEST_JSD, bins=24)
    ]
    bins = {label: [row["jsd"] for row in group] for label, group in group_by_largest_weight(rows).items()}
    drawn.append(charts.draw_violins(bins, title="By the largest weight", ylabel="JSD"))
    yield arrange_charts(drawn)
    head = ["", "mean JSD", "95 %", "median", "of attainable", "at least 0.525", "none found", "n"]
    every = {"all": found, **found["classes"]}
    table = [
        [label, one["jsd"]["mean"], format_bounds(one["jsd"]), one["jsd"]["median"], one["of_attainable"]["mean"],
         one["many"], one["none"], one["jsd"]["n"]]
        for label, one in every.items()
    ]  # fmt: skip
    yield html.make_table(head, table, caption="The farthest attention with the same answer, by predicted class")


def chart_seeds(audit: Audit, name: str, found: Mapping[str, Any]) -> Iterator[Any]:
    rows = [[what, found[key]["mean"], format_bounds(found[key]), found[key]["n"]] for what, key in SEED_ROWS.items()]
    yield html.make_table(["", "mean", "95 %", "n"], rows, caption=f"{found['checkpoints']} other seeds")


SEED_ROWS = {"JSD of attention": "jsd", "the farthest seed": "most", "TVD of answers": "tvd"}


def chart_diagnostic(audit: Audit, name: str, found: Mapping[str, Any]) -> Iterator[Any]:
    of = lambda guide, key: float("nan") if found[guide][key] is None else float(found[guide][key])  # noqa: E731
    rows = [(label, of(guide, "mean"), of(guide, "low"), of(guide, "high")) for guide, label in GUIDE_NAMES.items()]
    yield html.embed_drawing(
        charts.draw_ranking(rows, title="A small model, by how it weighs tokens", xlabel="share right")
    )
    table = [
        [label, found[guide]["mean"], format_bounds(found[guide]), found[guide]["n"]]
        for guide, label in GUIDE_NAMES.items()
    ]
    yield html.make_table(["weights", "share right", "95 %", "n"], table, caption="A small model on examples held out")


GUIDE_NAMES = {"attention": "this attention", "uniform": "equal weights", "learned": "learned by itself"}

CHARTS = {
    "agreement": chart_agreement,
    "replacement": chart_replacement,
    "adversarial": chart_adversarial,
    "seeds": chart_seeds,
    "diagnostic": chart_diagnostic,
}


# --- all attention ----------------------------------------------------------------------------------------------------


def tabulate_attention(audit: Audit) -> Iterator[Any]:
    head = [
        "attention",
        "permuted",
        "uniform",
        "other attention",
        "tau, gradient",
        "tau, left out",
        "small model gains",
    ]
    table = []
    for name in audit.attention:
        found = audit.summary["attention"][name]
        kinds = (found.get("replacement") or {}).get("kinds", {})
        pairs = found.get("agreement") or {}
        left_out = pairs.get(f"attention ~ {DELETED}") or pairs.get(f"attention ~ {REMOVED}")
        table.append(
            [
                name,
                (kinds.get("permutation") or {}).get("change", {}).get("median"),
                (kinds.get("uniform") or {}).get("change", {}).get("median"),
                (found.get("adversarial") or {}).get("jsd", {}).get("mean"),
                (pairs.get(f"attention ~ {GRADIENT}") or {}).get("tau", {}).get("mean"),
                left_out["tau"]["mean"] if left_out else None,
                (found.get("diagnostic") or {}).get("gain", {}).get("mean"),
            ]
        )
    yield html.make_table(head, table, caption="Change of probability (median), JSD, tau and gain in accuracy (means)")


def chart_shape(audit: Audit) -> Iterator[Any]:
    shape = audit.summary["shape"]
    heads = max(len(row) for row in shape["entropy"])
    blocks, columns = [f"block {b}" for b in range(len(shape["entropy"]))], [f"head {h}" for h in range(heads)]
    filled = lambda what: [[*row, *[float("nan")] * (heads - len(row))] for row in shape[what]]  # noqa: E731
    yield list_sentences([one for one in audit.sentences[""] if one.test == "shape"])
    drawn = [
        charts.draw_matrix(blocks, filled(what), columns=columns, title=title, between=(0.0, 1.0), signed=False)
        for what, title in (("entropy", "Normalised entropy"), ("special", "Share on special tokens"))
    ]
    if len(shape["blocks_jsd"]) > 1:
        drawn.append(
            charts.draw_matrix(
                blocks, shape["blocks_jsd"], title="JSD between blocks", between=(0.0, LARGEST_JSD), signed=False
            )
        )
    yield arrange_charts(drawn)
    table = [
        [block, *(sum(shape[what][b]) / len(shape[what][b]) for what in ("entropy", "largest", "special")),
         shape["heads_jsd"][b], shape["heads_kl"][b]]
        for b, block in enumerate(blocks)
    ]  # fmt: skip
    head = ["", "entropy", "largest weight", "on special tokens", "JSD between heads", "KL between heads"]
    yield html.make_table(head, table, caption=f"Means over heads, queries and {shape['n']} examples")
    yield html.make_element("p", "Limits: " + TEST_LIMITS["shape"], class_="dim")


def list_audit_settings(audit: Audit) -> Iterator[Any]:
    answers, settings = audit.summary["answers"], audit.settings
    search = settings["search"]
    moving = (
        "words or patches alone" if settings["words_only"] else "all tokens a query may attend to, special ones too"
    )
    searched = "all examples" if settings["searched"] is None else f"{settings['searched']} examples at most"
    lines = {
        "examples": f"{answers['n']}; predicted: " + ", ".join(f"{k} {v}" for k, v in answers["predicted"].items()),
        "accuracy": "no labels" if answers["accuracy"] is None else f"{answers['accuracy']['mean']:.1%}",
        "tokens": f"{answers['tokens']['mean']:.1f} words or patches on average",
        "permutations": f"{settings['draws']} an example; weights move among {moving}",
        "rows": "replaced are the rows of the queries on which the answer depends; in the last block of a model that "
        "reads its answer at one token, that token's row alone",
        "search": f"{search['candidates']} candidates, {search['steps']} steps, tolerance {search['tolerance']:g} "
        f"while searching and {search['selection']:g} when choosing; on {searched}",
        "intervals": "bootstrap over examples, 95 %",
        "seed": settings["seed"],
        "papers": "Jain & Wallace, Attention is not Explanation (NAACL 2019); Wiegreffe & Pinter, Attention is not not "
        "Explanation (EMNLP 2019)",
    }
    yield html.make_fact_list(lines)


def format_bounds(figure: Mapping[str, Any]) -> str | None:
    return None if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"
