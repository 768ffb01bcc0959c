"""The report of an audit: one self-contained HTML page. Every chart comes with its numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from whyformer._audit.checks import DELETED, GRADIENT, MASKED, REMOVED
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.limits import TEST_LIMITS
from whyformer._audit.report.sections import CHARTS, CLASS_DRAWINGS, arrange_charts, chart_shape, tabulate
from whyformer._audit.report.summary import Statistics
from whyformer._audit.report.verdict import VerdictSentence, capitalise_first
from whyformer.show.blocks import Block, Bullets, Facts, Fold, Notes, PageSection, Paragraph, Report
from whyformer.show.html import make_element
from whyformer.show.page_facts import format_settings, list_facts

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
MAX_SECTIONS = 6  # audited attention with a section of its own; beyond that, only a row in the table


def make_audit_report(audit: AuditFindings) -> Report:
    """The whole page; a notebook shows the verdict alone."""
    sections = [PageSection("Verdict", list(list_verdict(audit)))]
    if len(audit.attention) > 1:
        found = {name: audit.summary["attention"][name] for name in audit.attention}
        caption = "Change of probability (median), JSD, tau and gain in accuracy (means)"
        table = tabulate(found, ATTENTION_COLUMNS, caption=caption, first="attention")
        sections.append(PageSection("Side by side", [table]))
    for i, name in enumerate(audit.attention[:MAX_SECTIONS]):
        blocks = list_attention_blocks(audit, name)
        sections.append(PageSection(capitalise_first(name), blocks, audit.descriptions[i]))
    if audit.summary["shape"]:
        blocks = list_test_blocks("shape", audit.sentences[""], chart_shape(audit))
        sections.append(PageSection("The shape of attention", blocks, name="Shape"))
    sections.append(PageSection("How this was measured", [Facts(list_audit_settings(audit))], name="How"))
    facts = list_facts(audit.model, {}, audit.versions, settings=format_settings({"": audit.settings}))
    brief = list(list_verdict(audit, with_sentences=True))
    return Report(TITLE, sections, describe_scope(audit), facts, brief=brief)


def describe_scope(audit: AuditFindings) -> str:
    names = list(audit.attention)
    more = f" and {len(names) - MAX_SECTIONS} more" if len(names) > MAX_SECTIONS else ""
    named = "; ".join(names[:MAX_SECTIONS])
    return f"{audit.model} on {len(audit)} examples of {audit.data}. Audited: {named}{more}."


def list_verdict(audit: AuditFindings, *, with_sentences: bool = False) -> Iterator[Block]:
    """The headline of each attention, what holds for all attention, and the notes."""
    for name in audit.attention[:MAX_SECTIONS]:
        yield Paragraph(audit.headlines[name], "strong")
        yield from [list_sentences(audit.sentences[name])] if with_sentences else []
    yield list_sentences(audit.sentences[""])
    if audit.summary["baseline"]:
        yield describe_test_limits("baseline")
    yield Notes(audit.notes)


def list_sentences(sentences: Sequence[VerdictSentence]) -> Bullets:
    return Bullets([(sentence.text, sentence.evidence) for sentence in sentences])


def describe_test_limits(test: str) -> Paragraph:
    return Paragraph(f"Limits: {TEST_LIMITS[test]}", "dim")


def list_attention_blocks(audit: AuditFindings, name: str) -> Iterator[Block]:
    found = audit.summary["attention"][name]
    for test, title in TEST_TITLES.items():
        if found.get(test):
            yield make_element("h3", title)
            charts = list(CHARTS[test](audit, name, found[test]))
            if by_class := list(CLASS_DRAWINGS[test](audit, name)) if test in CLASS_DRAWINGS else []:
                charts.append(Fold("Figures by predicted class", [arrange_charts(*by_class)]))
            yield from list_test_blocks(test, audit.sentences[name], charts)


def list_test_blocks(test: str, sentences: Sequence[VerdictSentence], charts: Iterable[Block]) -> Iterator[Block]:
    """The sentences of a test, its charts and tables, and its limits."""
    yield list_sentences([sentence for sentence in sentences if sentence.test == test])
    yield from charts
    yield describe_test_limits(test)


def list_predicted(answers: Statistics) -> str:
    return ", ".join(f"{label} {count}" for label, count in answers["predicted"].items())


def list_audit_settings(audit: AuditFindings) -> dict[str, Any]:
    answers, settings = audit.summary["answers"], audit.settings
    search = settings["search"]
    everywhere = "all tokens a query may attend to, including special ones"
    among = "words or patches only" if settings["words_only"] else everywhere
    limit = "all examples" if settings["searched"] is None else f"at most {settings['searched']} examples"
    return {
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
