"""The pages that are read off the code: methods.md and metrics.md from what is registered, recipes.md from the rules.

Sphinx calls this before it reads the pages. By hand, `python docs/extensions/generated_pages.py` also brings the
methods in README.md up to date: some to begin with, and the names of all by what they take.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from whyformer import methods, metrics
from whyformer._engine.relevance import rules
from whyformer._engine.relevance.recipes import RECIPES, STABILISERS, Recipe
from whyformer._engine.sites import SITES
from whyformer.methods._registry import METHODS, Method
from whyformer.metrics._registry import METRIC_INPUTS, METRIC_KINDS, METRICS, Metric

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
README = DOCS.parent / "README.md"
METHODS_IN_README = re.compile(r"(?<=<!-- methods -->\n).*?(?=<!-- end of methods -->)", re.DOTALL)

TO_BEGIN_WITH = (  # in the README; the others only by name
    "transformer_attribution",
    "generic_attention",
    "attcat",
    "attnlrp",
    "gradient_x_input",
    "integrated_gradients",
    "leave_one_out",
    "kernel_shap",
    "lime",
    "raw_attention",
    "rollout",
    "chance",
)
FAMILIES = {  # what a method takes, and so what it costs -> whether this one does; the first that fits
    "nothing at all: the baseline": lambda method: {*method.needs} <= {"mask", "fingerprint"},
    "the model again, on variants of the input": lambda method: "probe" in method.needs,
    "each token's part, carried through all layers": lambda method: "answer_parts" in method.needs,
    "a pass of relevance": lambda method: method.recipe is not None,
    "a backward pass": lambda method: method.needs_gradient,
    "the forward pass alone": lambda method: True,
}


def methods_page() -> str:
    chapters = [chapter(file, its_methods) for file, its_methods in by_file().items()]
    return "\n\n".join(
        [
            "# Methods",
            "What every number means, where it comes from and what it costs. A method has one file, named after it or "
            "after its paper, in `src/whyformer/methods/`; this page is made from those files. Signed scores speak for "
            "(positive) and against (negative) the target; a method that is not class-specific gives the same scores "
            "whatever the target.",
            families_table(link=True),
            methods_table(shipped(), link=True),
            *chapters,
            "## What a method can ask for",
            "The sites, with their axes. Those with a `layer` or `boundary` come as a sequence with one tensor each; a "
            "boundary is the entrance of a block or, the last, its exit.",
            table([["site", "axes"], *([f"`{site}`", axes.replace("*", "\\*")] for site, axes in SITES.items())]),
        ]
    )


def metrics_page() -> str:
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
            "Is an explanation any good? Each metric gives one number for each example, none where it is undefined. "
            "No single one is to be trusted: read faithfulness beside stability and sanity, and everything beside "
            "`chance`. A control says what a map without any merit gets. A preset is a set of settings with a name: "
            "`paper` is what the authors wrote down, `released` what their code computes where that differs. This "
            "page is made from the files in `src/whyformer/metrics/`.",
            table(rows),
            *(metrics_chapter(file, its_metrics) for file, its_metrics in files.items()),
            "## What a metric can be measured on",
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
    rows = [["takes", "methods"]]
    rows += [[said, ", ".join(named(method, link=link) for method in its)] for said, its in families.items() if its]
    return table(rows)


def family(method: Method) -> str:
    return next(said for said, fits in FAMILIES.items() if fits(method))


def named(method: Method, *, link: bool) -> str:
    return f"[`{method.name}`](#{method.name})" if link else f"`{method.name}`"


def recipes_page() -> str:
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
            "one as `recipe=`. [Write your own rule](write-a-rule.md) shows how to change one.",
            *(f"`{recipe.name}`\n: {recipe.describe}{parameters(recipe)}" for recipe in recipes),
            table(which),
            "An operation that a recipe has no rule for is an error that names it, never a silent plain gradient.",
            "## Notes",
            prose(inspect.getdoc(rules)),
            "## Rules",
            *(f"### `{name}`\n\n{linked(inspect.getdoc(rule))}" for name, rule in used.items()),
            "## Stabilisers",
            "How a division by (nearly) nothing is kept finite; `stabiliser=` beside `recipe=`.",
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


def write_pages(app: "Sphinx | None" = None) -> None:
    for name, text in {
        "methods.md": methods_page(),
        "metrics.md": metrics_page(),
        "recipes.md": recipes_page(),
    }.items():
        page = DOCS / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def write_methods_in_readme() -> None:
    README.write_text(readme_with_methods(README.read_text()))


def readme_with_methods(readme: str) -> str:
    return METHODS_IN_README.sub(lambda _: methods_for_readme() + "\n", readme)


def methods_for_readme() -> str:
    first = methods_table((METHODS[name] for name in TO_BEGIN_WITH), link=False)
    quick = sum(method.is_quick for method in shipped())
    every = (
        f"All {len(shipped())}, by what they take. {quick} of them share one forward and one backward pass; a recipe "
        "of relevance is one pass more."
    )
    return "\n\n".join([first, every, families_table(link=False)])


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("config-inited", lambda app, config: write_pages())
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_pages()
    write_methods_in_readme()
