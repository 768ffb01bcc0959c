"""skill.md: one page for programs that write programs, from the signatures of the verbs and examples that run.

llms.txt: the pages of the documentation with what each is for.
"""

import inspect
import re
from pathlib import Path

from reference_examples import EXAMPLES

import whyformer

# The verb: the question that it answers, and what to read in its result.
VERBS = {
    "explain": (
        "Which words or patches count for this prediction?",
        '`print(e)` shows it; `e.top(3)`: the (piece, score) pairs with the highest scores, `e.top(3, by="magnitude")` also those against; `e.words()`: the explanation by whole words, `e.words().top(3)`; several inputs give a list for each; '
        "`e.scores`: a tensor [example, token]; `e.targets[0].label`, `.probability`; `e.notes`: what to know; `e.save('e.html')`. "
        "Ask for another class with `target='cat'`, for one and not another with `versus='dog'`.",
    ),
    "check": (
        "Does the answer change without these words?",
        "`.hiding` says the probability now, with the highest words hidden, and with everything hidden. If the last one "
        "is the answer too, no map explains it.",
    ),
    "compare": ("Do methods agree?", "`both.agreement()`: rank correlations of each pair; `both.explanations[name]`."),
    "explain_classes": ("What speaks for each of several classes?", "A grid of maps: `grid.save('classes.html')`."),
    "generate": ("What does a language model answer?", "A `Prompt`: `prompt.answer_text`, for `cite` and the others; where it is empty, pass them `answer=` instead."),
    "cite": (
        "Which passage does an answer rest on?",
        "`cited.claim`: a sentence; `.claim.how`: one, any of, together, several, hardly any (`.rests_on` is empty), against (the passages make it less likely); `.rests_on`: passages with `.text`; `cited.sentences`: "
        "each sentence of the answer. `by=` takes passages that stand in the prompt. It is measured on the model asked: it does not say that a passage is true.",
    ),
    "explain_generation": ("Why was each token written?", "`written.records()`: rows of written token, source token, score."),
    "explain_tool_call": ("Which words made it call that tool?", "`call.top('argument NAME')`, `call.top('function')`."),
    "trace_reasoning": ("Where does an answer come from, through its own steps?", "`hops.records()`, `hops.by_region()`."),
    "check_answer": ("How likely does the model find a logged answer?", "`check.verdict`, `.mean`, `.perplexity`."),
    "explain_similarity": ("Why are two inputs alike?", "`alike.score`; `alike.top(3)`: pairs; `alike.records()`: tokens."),
    "explain_ranking": ("Why is one document above another?", "`order.order`; `order.contrast()`; `order.checks`: hiding."),
    "judge": (
        "Which method should I believe on my data?",
        "`judged.verdict`: one sentence; `.table`, `.to_pandas()`. Methods stand beside controls that know nothing. Give it at least 20 different items.",
    ),
    "bulk": ("Explain a whole data set", "A folder of Parquet files: `run.to_pandas()`; `run.errors()`. Started again, it goes on."),
    "summarise_bulk": ("What does the model look at, over all items?", "`.verdict`; `.suspicious`; `.save('summary.html')`. Few items of a class are not tested; it says so."),
    "compare_runs": ("What changed between two checkpoints or data sets?", "`.verdict`; `.moved`; `.save('compared.html')`. A class needs 8 items in both."),
    "inspect_attention": ("What does each head attend to?", "`view.rows()`. Attention is not evidence; see `audit`."),
    "audit": ("Does attention explain the predictions?", "`audited.headlines`: a dictionary of sentences; `.save('audit.html')`."),
    "diagnose": ("Which methods work on my model?", "`found.verdict`; `found.list_methods('works')`."),
}  # fmt: skip
MORE = {
    "summarise_bulk": 'summary = why.summarise_bulk("run", model=bert)',
    "compare_runs": 'changed = why.compare_runs("run", "run of the new model")',
}
HEAD = """# Skill: write code with whyformer

For a program, or a person in a hurry, that writes code with whyformer: which function, with which arguments, what its result means, what not to claim. Generated from the functions; the examples run.

```python
import whyformer as why

bert = why.open("demo/sentiment")  # a folder, a name on the hub, an nn.Module, a pipeline; demo/...: pip install "whyformer[demo]"
```

`model` is what `open` returns, or anything that it takes. `inputs` are a text, a path of an image, a PIL image (a bare module takes tensors: `why.open(module, tokenizer=...)` or `processor=...` for others), an array, a tensor, a `TextPair`, a dictionary of tensors, or a list of these. `data` is a list of inputs, a folder of images with a folder for each class, a table (CSV, Parquet, DataFrame) with a column of inputs and one of labels, or `why.data.Example` objects. Every result has `print(result)`, `.save("x.html")` (also .json, .csv, .md, .tex, .png where it can), `.records()`, `.to_pandas()` and `.show()`; most have `.notes`. Errors are `why.WhyformerError` with a sentence that says what to do.
"""
TAIL = """## What not to claim

- A score is how much a method gives a piece for the answer asked for, not a probability, and not a cause. Say "the method gives most to", not "the model decided because".
- Positive speaks for the target, negative against it. Scores of two methods have different units; of one method they compare within one explanation.
- A map that looks right is no evidence. Evidence is `check` (hide it, ask again), `judge` (beside controls) or `cite` (leave it out).
- If the answer is the same with every word hidden, say that hiding cannot show which words decide it.
- Attention weights are no explanation by themselves; `audit` measures that on the model.
- `cite` says what this model's answer rests on, not that the answer is true. *Hardly any* means that it answers so without the passages too.
- Read `.notes` and pass them on: they hold what the method cannot see in this model.
- Report the method, the model and its weights' checksum: `e.method`, `e.model`, `e.versions`.

## Command line

`whyformer explain TEXT_OR_FILE -M MODEL -o out.html`, and likewise `compare`, `judge DATA`, `bulk DATA -o FOLDER`, `bulk-summary FOLDER`, `compare-runs A B`, `audit DATA`, `generate`, `cite`, `trace`, `similarity`, `inspect`, `doctor`, `serve`. `--json` prints a result for programs, `whyformer COMMAND --help` has every option.
"""


def make_skill_page() -> str:
    parts = [HEAD.strip()]
    for name, (question, result) in VERBS.items():
        example = EXAMPLES.get(name) or MORE[name]
        parts += [f"## {question}", f"`why.{name}({spell_signature(name)})`", f"```text\n{example}\n```", result]
    return "\n\n".join([*parts, TAIL.strip()]) + "\n"


def spell_signature(name: str) -> str:
    """The parameters of a verb with their defaults, without types."""
    parameters = inspect.signature(getattr(whyformer, name)).parameters.values()
    return ", ".join(str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters)


def make_llms_index(docs: Path, sections: dict[str, str]) -> str:
    """A line for each page: its title, its address, the sentence that it opens with."""
    lines = [
        "# whyformer",
        "> Why did the transformer say that? Explains the predictions of any PyTorch transformer, unmodified.",
        "- [Write code with whyformer](skill.md): which function, which arguments, what a result means, what not to claim",
    ]
    for caption, pages in sections.items():
        listed = [docs / f"{page}.md" for page in pages.split() if (docs / f"{page}.md").is_file() and page != "skill"]
        if listed:
            lines += [f"## {caption}", "\n".join(describe_page(page) for page in listed)]
    return "\n\n".join(lines) + "\n"


def describe_page(page: Path) -> str:
    text = re.sub(r"\A---\n.*?\n---\n\n", "", page.read_text("utf-8"), flags=re.DOTALL)
    title, first = (part.strip() for part in text.split("\n\n")[:2])
    sentence = re.split(r"(?<=[.:?])\s", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", first.replace("\n", " ")))[0]
    return f"- [{title.removeprefix('# ')}]({page.name}): {sentence}"
