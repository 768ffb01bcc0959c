"""Write the pages that come from the code: methods.md, metrics.md, recipes.md, reference.md, skill.md;
index.md (README), llms.txt; models.md and models-others.md, from the tables that tests/families and tests/others write.

    make pages

The pages are committed, so that links work on a code host; a test fails when one is stale.
"""

import csv
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from reference_examples import EXAMPLES
from skill_page import make_llms_index, make_skill_page

import whyformer
from whyformer import methods, metrics
from whyformer._engine.capture.sites import SITES
from whyformer._engine.relevance import rules
from whyformer._engine.relevance.recipes import RECIPES, STABILISERS, Recipe
from whyformer.methods._registry import METHODS, Method
from whyformer.metrics._registry import METRIC_INPUTS, METRIC_KINDS, METRICS, Metric

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
SUPPORT = DOCS.parent / "tests" / "families" / "support.py"
OTHERS = DOCS.parent / "tests" / "others"

FAMILIES = {  # what a method takes, and so what it costs -> whether this one does; the first that fits
    "nothing: the random baseline": lambda method: {*method.needs} <= {"mask", "fingerprint"},
    "further forward passes, on variants of the input": lambda method: "probe" in method.needs,
    "each token's contribution, decomposed through all layers": lambda method: "answer_parts" in method.needs,
    "a relevance pass (LRP backward)": lambda method: method.recipe is not None,
    "a backward pass": lambda method: method.needs_gradient,
    "the forward pass only": lambda method: True,
}


def make_methods_page() -> str:
    chapters = [chapter(file, its_methods) for file, its_methods in by_file().items()]
    return "\n\n".join(
        [
            "# Methods",
            "What each score means, where it comes from and what it costs. Every method has one file in "
            "`src/whyformer/methods/`, and this page is generated from those files. Signed scores count for (positive) "
            "or against (negative) the target. A method that is not class-specific gives the same scores for every "
            "target. Methods marked ‡ send relevance backwards, which patents of others may cover; see NOTICE.",
            families_table(link=True),
            methods_table(shipped(), link=True),
            *chapters,
            "## What a method can need",
            "Sites are the named points at which a running model can be captured, listed here with their axes. A site "
            "whose first axis is `layer` or `boundary` is a sequence of tensors, one for each. Boundary 0 is the input "
            "of the first block, the last boundary the output of the last block.",
            table(
                [
                    ["site", "axes", "what"],
                    *([f"`{s.name}`", s.axes.replace("*", "\\*"), s.description] for s in SITES.values()),
                ]
            ),
        ]
    )


def make_metrics_page() -> str:
    ordered = sorted(metrics.__all__, key=lambda name: (METRIC_KINDS.index(METRICS[name].kind), name))
    files: dict[ModuleType, list[Metric]] = {}
    for name in ordered:
        files.setdefault(sys.modules[METRICS[name].compute.__module__], []).append(METRICS[name])
    rows = [["metric", "about", "what the number means", "better", "needs"]]
    for one in (METRICS[name] for name in ordered):
        needs = ", ".join(filter(None, [one.needs_truth and f"a {one.needs_truth}", one.only and f"{one.only}"]))
        rows.append([f"[`{one.name}`](#{one.name})", one.kind, one.summary, one.better, needs])
    return "\n\n".join(
        [
            "# Metrics",
            "Is an explanation any good? A metric gives one number per example, or none where it is undefined. Do not "
            "trust a single metric: read faithfulness beside stability and sanity, and compare everything with "
            "`chance`. Each docstring says what a map without merit gets. A preset is a named set of settings: "
            "`paper` follows the text of the paper, `released` the authors' code where the two differ. This page is "
            "generated from the files in `src/whyformer/metrics/`.",
            table(rows),
            *(metrics_chapter(file, its_metrics) for file, its_metrics in files.items()),
            "## What a metric can need",
            table([["name", "what it is"], *([f"`{name}`", said] for name, said in METRIC_INPUTS.items())]),
        ]
    )


def metrics_chapter(file: ModuleType, its_metrics: list[Metric]) -> str:
    title, _, text = inspect.getdoc(file).partition("\n")
    return "\n\n".join([f"## {title.rstrip('.')}", linked(text.strip()), *map(metrics_section, its_metrics)])


def metrics_section(one: Metric) -> str:
    facts = {
        "paper": one.paper,
        "better": one.better,
        "measured on": ", ".join(f"`{need}`" for need in one.needs),
        "settings": ", ".join(f"`{name}={default!r}`" for name, default in one.settings.items()) or "none",
        "presets": "; ".join(
            f"`{name}`: " + (", ".join(f"`{key}={value!r}`" for key, value in preset.items()) or "as it is")
            for name, preset in one.presets.items()
        ),
        "of a data set": "made of parts" if one.combine else "the mean",
    }
    rows = [["", ""], *([name, fact] for name, fact in facts.items() if fact)]
    return "\n\n".join([f"### `{one.name}`", itemised(inspect.getdoc(one.compute), one.settings), table(rows)])


def shipped() -> list[Method]:
    """The methods of the package by name, without those that somebody else has registered."""
    return [METHODS[name] for name in methods.__all__]


def by_file() -> dict[ModuleType, list[Method]]:
    """The methods of each file, files by name."""
    files: dict[ModuleType, list[Method]] = {}
    for method in sorted(shipped(), key=lambda method: (method.compute.__module__, method.name)):
        files.setdefault(sys.modules[method.compute.__module__], []).append(method)
    return files


def chapter(file: ModuleType, its_methods: list[Method]) -> str:
    title, _, text = inspect.getdoc(file).partition("\n")
    return "\n\n".join([f"## {title.rstrip('.')}", linked(text.strip()), *map(section, its_methods)])


def section(method: Method) -> str:
    settings = [f"`{name}={default!r}`" for name, default in method.settings.items()]
    if method.recipe:
        settings += [f"`recipe={method.recipe!r}`", "`stabiliser`"]
    facts = {
        "paper": method.paper,
        "needs": ", ".join(f"`{need}`" for need in method.needs),
        "settings": ", ".join(settings) or "none",
        "class-specific": yes_or_no(method.class_specific),
        "signed": yes_or_no(method.signed),
        "cost": method.cost,
    }
    rows = [["", ""], *([name, fact] for name, fact in facts.items())]
    return "\n\n".join([f"### `{method.name}`", itemised(inspect.getdoc(method.compute), method.settings), table(rows)])


def methods_table(some: Iterable[Method], *, link: bool) -> str:
    rows = [["method", "what a score means", "paper", "class-specific", "signed", "cost"]]
    for method in some:
        facts = yes_or_no(method.class_specific), yes_or_no(method.signed), method.cost
        rows.append([named(method, link=link), method.summary, method.paper, *facts])
    return table(rows)


def families_table(*, link: bool) -> str:
    """The names of all methods, by what they take; the cheap ones first."""
    families: dict[str, list[Method]] = {said: [] for said in reversed(FAMILIES)}
    for method in shipped():
        families[family(method)].append(method)
    rows = [["needs", "methods"]]
    rows += [[said, ", ".join(named(method, link=link) for method in its)] for said, its in families.items() if its]
    return table(rows)


def family(method: Method) -> str:
    return next(said for said, fits in FAMILIES.items() if fits(method))


def named(method: Method, *, link: bool) -> str:
    name = f"[`{method.name}`](#{method.name})" if link else f"`{method.name}`"
    return f"{name} ‡" if link and method.recipe else name


def make_recipes_page() -> str:
    recipes = RECIPES.values()
    used = {rule.__name__: rule for recipe in recipes for rule in recipe.rules.values()}
    kinds = dict.fromkeys(kind for recipe in recipes for kind in recipe.rules)
    which = [["operation", *(f"`{recipe.name}`" for recipe in recipes)]]
    which += [
        [kind, *(f"[`{recipe.rules[kind].__name__}`](#{recipe.rules[kind].__name__})" for recipe in recipes)]
        for kind in kinds
    ]
    return "\n\n".join(
        [
            "# Recipes",
            "A relevance rule takes the relevance $R$ of an operation's result and says how much of it each operand "
            "gets. A recipe is a table from the kind of an operation to its rule; a method that needs relevance takes "
            "one as `recipe=`. [Write your own rule](write-a-rule.md) shows how to change one. This page is generated "
            "from `src/whyformer/_engine/relevance/`.",
            *(f"`{recipe.name}`\n: {recipe.describe}{parameters(recipe)}" for recipe in recipes),
            table(which),
            "An operation without a rule in the recipe raises an error that names it. It never falls back to the plain "
            "gradient.",
            "## Notes",
            prose(inspect.getdoc(rules)),
            "## Rules",
            *(f"### `{name}`\n\n{linked(inspect.getdoc(rule))}" for name, rule in used.items()),
            "## Stabilisers",
            "How a division by a number close to zero is kept finite. Pass `stabiliser=` beside `recipe=`.",
            table([["name", "divides by"], *([f"`{s.name}`", s.describe] for s in STABILISERS.values())]),
        ]
    )


def parameters(recipe: Recipe) -> str:
    """The settings that a recipe gives to every method that uses it."""
    return "".join(f" Setting: `{name}={value:g}`." for name, value in recipe.parameters.items())


def prose(docstring: str) -> str:
    """A docstring without its first line and its drawings, which are indented."""
    paragraphs = docstring.split("\n\n")[1:]
    return linked("\n\n".join(p for p in paragraphs if not p.startswith("    ") and not p.endswith(":")))


def linked(text: str) -> str:
    """Papers as links."""
    text = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"doi:(10\.\S*\w)", r"[doi:\1](https://doi.org/\1)", text)


def itemised(docstring: str, names: Iterable[str]) -> str:
    """A docstring in which the line of each setting is an item of a list."""
    return re.sub(rf"^({'|'.join(names)}): ", r"* `\1`: ", docstring, flags=re.MULTILINE) if names else docstring


def table(rows: list[list[str]]) -> str:
    head, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def yes_or_no(is_so: bool) -> str:
    return "yes" if is_so else "no"


# --- models of other libraries ----------------------------------------------------------------------------------------

TRIED = (
    "transformer_attribution", "generic_attention", "rollout", "raw_attention", "attcat", "attnlrp", "gradient_x_input",
    "grad_cam", "leave_one_out", "chance",
)  # fmt: skip


def make_others_page() -> str:
    """What works on the models of other libraries, from tests/others/results.csv."""
    with (OTHERS / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    served = [row for row in rows if _list_refused(row) == []]
    complete = sum(len(_list_applicable(row)) == len(TRIED) for row in served)
    versions = ", ".join(
        line.strip().replace("==", " ")
        for line in (DOCS.parent / "constraints-others.txt").read_text().splitlines()
        if line.partition("==")[0] in LIBRARY_PACKAGES
    )
    parts = [
        "# Models of other libraries",
        f"{len(rows)} models, tiny and with random weights, each tried with ten methods: "
        f"{', '.join(f'`{name}`' for name in TRIED)}. Nothing that applies is refused on {len(served)} of them: all "
        f"ten methods work on {complete}; {len(served) - complete} have no attention, so that the six methods that "
        "read it do not apply to them, and the others work. Every refusal has its reason below. `make test-others` "
        "sets up an environment with these libraries and runs the same checks, `make sweep-others` writes the table "
        "anew.",
        "Checked on each: no exception but whyformer's own; the logits of the library; an example in a batch is scored "
        "as the example alone; attention as the library's eager code computes it and gradient x input by autograd, "
        "where the library can tell; relevance is conserved; the model is unchanged afterwards.",
        f"Versions: {versions}. Their published weights were not tried.",
        *(_make_library_section(library, [row for row in rows if row["library"] == library]) for library in libraries),
    ]
    return "\n\n".join(parts) + "\n"


LIBRARY_PACKAGES = {
    "accelerate", "bitsandbytes", "open_clip_torch", "peft", "sentence-transformers", "timm", "torchao", "torchvision",
    "vit-pytorch", "x-transformers",
}  # fmt: skip


def _make_library_section(library: str, rows: list[dict[str, str]]) -> str:
    lines = [
        "| model | methods that work | attention = eager | refused, and the first reason |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        refused, applicable = _list_refused(row), _list_applicable(row)
        works = len(applicable) - len(refused)
        reason = row["reason"].partition(": ")[2].replace("|", "\\|") if refused else ""
        names = ", ".join(refused) if works > 0 else "all" if refused else ""
        said = f"{names}: {reason}" if refused else "" if len(applicable) == len(TRIED) else "no attention"
        lines.append(f"| {row['model']} | {works} of {len(applicable)} | {_say_attention(row)} | {said} |")
    return f"## {library}\n\n" + "\n".join(lines)


def _list_refused(row: dict[str, str]) -> list[str]:
    return [name for name in _list_applicable(row) if row[name] != "ok"]


def _list_applicable(row: dict[str, str]) -> list[str]:
    """The methods that can be asked for: those that read attention do not apply to a model that has none."""
    return [name for name in TRIED if row[name] != "n/a"]


def _say_attention(row: dict[str, str]) -> str:
    return {"ok": "yes", "n/a": "not told"}.get(row["attention"], "refused")


def make_models_page() -> str:
    """What the sweep over the classes of transformers found; tests/families has the sweep and its table."""
    spec = importlib.util.spec_from_file_location("support", SUPPORT)
    assert spec is not None and spec.loader is not None
    support = importlib.util.module_from_spec(spec)
    sys.modules["support"] = support  # dataclasses look there
    spec.loader.exec_module(support)
    return str(support.make_support_page(support.read_table()))


def make_pages() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {
        DOCS / "methods.md": make_methods_page(),
        DOCS / "metrics.md": make_metrics_page(),
        DOCS / "recipes.md": make_recipes_page(),
        DOCS / "models.md": make_models_page(),
        DOCS / "models-others.md": make_others_page(),
        DOCS / "index.md": make_index_page(),
        DOCS / "reference.md": make_reference_page(),
        DOCS / "skill.md": make_skill_page(),
        DOCS / "llms.txt": make_llms_index(DOCS, SECTIONS),
    }


# --- the start page and the reference ---------------------------------------------------------------------------------


def make_index_page() -> str:
    """README with links from this folder, then the pages in the order to read them."""
    text = re.sub(r'<img src="docs/([^"]+)" alt="([^"]+)"[^>]*>', r"![\2](\1)", README.read_text())
    text = re.sub(r"\]\(docs/notebooks\)", "](notebooks/image.ipynb)", text)
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", text)
    text = re.sub(r"\[([^]]+)\]\((?:NOTICE|LICENSE|[A-Z]+\.(?:md|cff))\)", r"\1", text)  # files beside this folder
    trees = [TOCTREE.format(caption=caption, pages="\n".join(pages.split())) for caption, pages in SECTIONS.items()]
    return "\n\n".join([text.replace("[Documentation](index.md)", "Documentation").rstrip(), *trees]) + "\n"


TOCTREE = """```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```"""
SECTIONS = {  # caption -> pages in reading order
    "Start": "start decision how-to page glossary",
    "An image classifier": "notebooks/image gallery vision-language",
    "A text classifier": "notebooks/text pairs similarity",
    "A language model, retrieval": "notebooks/passages language-models prompts cite logs reasoning seq2seq prompt-page",
    "A data set": "bulk bulk-summary compare-runs integrations",
    "My own module": "doctor your-attention models models-others real write-a-rule",
    "Choose a method": "notebooks/judge-my-model judge judge-measured methods recipes planted machines",
    "Understand a metric": "metrics which-metric",
    "Question attention": "notebooks/audit-attention audit",
    "Reference": "skill reference targets parameters errors",
    "How it works": "engine architecture benchmarks",
    "The papers": "reproduce reproduce-chefer reproduce-attcat reproduce-sawaki-murata reproduce-jain-wallace "
    "reproduce-relevance-rollout reproduce-abnar-zuidema",
}
REFERENCE = {  # heading -> public names; a test checks that every name is here
    "Models and inputs": "open Model TextPair Prompt Region Grid Pieces InputLike DataLike",
    "Explain": "explain Explanation check load compare Comparison explain_classes ClassGrid Target TargetLike",
    "Language models": "generate explain_generation Generation cite Citations Claim Citation "
    "measure_citations CitationAgreement cite_log CitedLog LogSummary "
    "explain_tool_call ToolCall trace_reasoning Hop Hops check_answer AnswerCheck",
    "Similarity": "explain_similarity Similarity explain_ranking Ranking",
    "Judge": "judge Judgement judge_metrics MetricTrust",
    "Data sets": "bulk BulkRun summarise_bulk BulkSummary compare_runs RunComparison",
    "Attention": "inspect_attention AttentionView audit Audit compare_redistribution RuleGrid",
    "Your model": "diagnose Diagnosis record Capture Intervention engine",
    "Extend": "method metric Scores Measurement Rationale make_generator make_recipe Recipe WhyformerError",
    "Tables": "METHODS METRICS RECIPES SITES __version__",
    "Modules": "data demo errors integrations methods metrics rules show targets",
}
MODULE_PAGES = {
    "methods": "methods.md", "metrics": "metrics.md", "errors": "errors.md", "targets": "targets.md",
    "rules": "write-a-rule.md", "integrations": "integrations.md",
}  # fmt: skip


def make_reference_page() -> str:
    parts = [
        "# Reference",
        "Every public name of `whyformer` with its signature and what it does. Commands: `whyformer COMMAND --help`; "
        "each has the arguments of the function of its name. Methods, metrics, targets and errors have pages of their "
        "own: [methods](methods.md), [metrics](metrics.md), [targets](targets.md), [errors](errors.md).",
    ]
    for heading, names in REFERENCE.items():
        parts += [f"## {heading}", *(describe_name(name) for name in names.split())]
    return "\n\n".join(parts) + "\n"


def describe_name(name: str) -> str:
    """The directive of autodoc for a public name."""
    value = getattr(whyformer, name)
    if isinstance(value, ModuleType):
        page = f" See [its page]({MODULE_PAGES[name]})." if name in MODULE_PAGES else ""
        return f"`whyformer.{name}`: {(value.__doc__ or '').splitlines()[0]}{page}"
    example = f"```python\n{EXAMPLES[name]}\n```\n\n" if name in EXAMPLES else ""
    if isinstance(value, type):
        return f"{example}```{{eval-rst}}\n.. autoclass:: whyformer.{name}\n   :members:\n```"
    if callable(value) and getattr(value, "__doc__", None) and hasattr(value, "__name__"):
        return f"{example}```{{eval-rst}}\n.. autofunction:: whyformer.{name}\n```"
    return f"`whyformer.{name}`: {DATA_NAMES[name]}"


DATA_NAMES = {
    "METHODS": "the methods by name; displays as a table",
    "METRICS": "the metrics by name; displays as a table",
    "RECIPES": "the recipes of relevance rules by name",
    "SITES": "what can be captured, by name",
    "__version__": "the version, a string",
    "InputLike": "the type of `inputs`, for annotations",
    "DataLike": "the type of `data`",
    "TargetLike": "the type of `target` and `versus`",
    "load": "reads a saved explanation",
}


if __name__ == "__main__":
    for path, text in make_pages().items():
        path.write_text(text)
