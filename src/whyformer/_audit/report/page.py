"""The report of an audit: one self-contained HTML page. Every chart comes with its numbers."""

from collections.abc import Iterable, Iterator, Sequence

from whyformer._audit.checks import DELETED, GRADIENT, MASKED, REMOVED
from whyformer._audit.report.class_sections import CLASS_DRAWINGS
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.limits import TEST_LIMITS
from whyformer._audit.report.sections import CHARTS, arrange_charts, chart_shape, tabulate
from whyformer._audit.report.summary import Statistics
from whyformer._audit.report.verdict import VerdictSentence
from whyformer._audit.report.wording import capitalise_first
from whyformer.show import report as html
from whyformer.show.page_facts import format_settings, list_facts
from whyformer.show.report import Html

TITLE = "Is attention an explanation here?"
TEST_TITLES = {
    "agreement": "Does it rank tokens as importance measures do?",
    "replacement": "Does the output change when the weights are moved?",
    "adversarial": "Is there other attention with the same output?",
    "adversary": "Can one model be trained to give the same answers with other attention?",
    "seeds": "How much does it change with the seed?",
    "diagnostic": "Does it help a model that sees each token separately?",
}
ATTENTION_COLUMNS = {
    "permuted": "replacement.kinds.permutation.change.median",
    "uniform": "replacement.kinds.uniform.change.median",
    "other attention": "adversarial.jsd.mean",
    "trained adversary": "adversary.jsd.mean",
    "tau, gradient": f"agreement.attention ~ {GRADIENT}.tau.mean",
    "tau, leave-one-out": " | ".join(f"agreement.attention ~ {how}.tau.mean" for how in (DELETED, REMOVED, MASKED)),
    "diagnostic gain": "diagnostic.gain.mean",
}
STYLE = """
.charts { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.charts figure { flex: 0 1 auto; width: auto; max-width: 100%; }
h3 { margin-top: 2rem; }
"""
MAX_SECTIONS = 6  # audited attention with a section of its own; beyond that, only a row in the table


def make_audit_page(audit: AuditFindings) -> str:
    """The whole page."""
    contents: dict[str, str] = {}
    sections: list[Html] = []

    def add(anchor: str, title: str, *content: Html | None, heading: str = "", remark: str = "") -> None:
        contents[anchor] = title
        sections.append(html.make_section(heading or title, *content, remark=remark, anchor=anchor))

    add("verdict", "Verdict", *make_verdict(audit))
    if len(audit.attention) > 1:
        found = {name: audit.summary["attention"][name] for name in audit.attention}
        caption = "Change of probability (median), JSD, tau and gain in accuracy (means)"
        add("all", "Side by side", tabulate(found, ATTENTION_COLUMNS, caption=caption, first="attention"))
    for i, name in enumerate(audit.attention[:MAX_SECTIONS]):
        blocks, remark = make_attention_blocks(audit, name), audit.descriptions[i]
        add(f"attention-{i}", capitalise_first(name), *blocks, remark=remark)
    if audit.summary["shape"]:
        blocks = make_test_blocks("shape", audit.sentences[""], chart_shape(audit))
        add("shape", "Shape", *blocks, heading="The shape of attention")
    add("how", "How", list_audit_settings(audit), heading="How this was measured")
    about = list_facts(audit.model, {}, audit.versions, settings=format_settings({"": audit.settings}))
    return html.make_page(TITLE, sections, lead=describe_scope(audit), about=about, contents=contents, style=STYLE)


def make_audit_fragment(audit: AuditFindings) -> str:
    """The verdict alone, for a notebook."""
    sentences = [list_sentences(audit.sentences[name]) for name in audit.attention[:MAX_SECTIONS]]
    lead = html.make_element("p", describe_scope(audit))
    return html.make_fragment(html.make_section(TITLE, lead, *make_verdict(audit, beside=sentences)))


def describe_scope(audit: AuditFindings) -> str:
    names = list(audit.attention)
    more = f" and {len(names) - MAX_SECTIONS} more" if len(names) > MAX_SECTIONS else ""
    named = "; ".join(names[:MAX_SECTIONS])
    return f"{audit.model} on {len(audit)} examples of {audit.data}. Audited: {named}{more}."


def make_verdict(audit: AuditFindings, beside: Sequence[Html | None] = ()) -> Iterator[Html | None]:
    """The headline of each attention, what holds for all attention, and the notes. beside: what follows a headline."""
    for i, name in enumerate(audit.attention[:MAX_SECTIONS]):
        yield html.make_element("p", html.make_element("strong", audit.headlines[name]))
        yield from beside[i : i + 1]
    yield list_sentences(audit.sentences[""])
    if audit.summary["baseline"]:
        yield make_limits("baseline")
    if audit.notes:
        yield html.make_notes(audit.notes)


def list_sentences(sentences: Sequence[VerdictSentence]) -> Html | None:
    if not sentences:
        return None
    items = [
        html.make_element("li", sentence.text, " ", html.make_element("span", sentence.evidence, class_="dim"))
        for sentence in sentences
    ]
    return html.make_element("ul", *items)


def make_limits(test: str) -> Html:
    return html.make_element("p", "Limits: " + TEST_LIMITS[test], class_="dim")


def make_attention_blocks(audit: AuditFindings, name: str) -> Iterator[Html | None]:
    found = audit.summary["attention"][name]
    for test, title in TEST_TITLES.items():
        if found.get(test):
            yield html.make_element("h3", title)
            charts = list(CHARTS[test](audit, name, found[test]))
            if by_class := list(CLASS_DRAWINGS[test](audit, name)) if test in CLASS_DRAWINGS else []:
                charts.append(html.fold_content("Figures by predicted class", arrange_charts(by_class)))
            yield from make_test_blocks(test, audit.sentences[name], charts)


def make_test_blocks(test: str, sentences: Sequence[VerdictSentence], charts: Iterable[Html]) -> Iterator[Html | None]:
    """The sentences of a test, its charts and tables, and its limits."""
    yield list_sentences([sentence for sentence in sentences if sentence.test == test])
    yield from charts
    yield make_limits(test)


def list_predicted(answers: Statistics) -> str:
    return ", ".join(f"{label} {count}" for label, count in answers["predicted"].items())


def list_audit_settings(audit: AuditFindings) -> Html:
    answers, settings = audit.summary["answers"], audit.settings
    search = settings["search"]
    everywhere = "all tokens a query may attend to, including special ones"
    among = "words or patches only" if settings["words_only"] else everywhere
    limit = "all examples" if settings["searched"] is None else f"at most {settings['searched']} examples"
    lines = {
        "examples": f"{answers['n']}; predicted: " + (list_predicted(answers) or "spans of the text"),
        "accuracy": "no labels" if answers["accuracy"] is None else f"{answers['accuracy']['mean']:.1%}",
        "tokens": f"{answers['tokens']['mean']:.1f} words or patches on average",
        "permutations": f"{settings['draws']} per example; weights move among {among}",
        "queries": "the weights of the queries the output depends on are replaced; in the last block of a model that "
        "reads its output at one token, only those of that token",
        "search": f"{search['candidates']} candidates, {search['steps']} steps, tolerance {search['tolerance']:g} "
        f"in the search and {search['selection']:g} in the selection; on {limit}",
        "intervals": "95 %, bootstrap over examples",
        "seed": settings["seed"],
        "papers": "Jain & Wallace, Attention is not Explanation (NAACL 2019); Wiegreffe & Pinter, Attention is not not "
        "Explanation (EMNLP 2019)",
    }
    return html.make_fact_list(lines)
