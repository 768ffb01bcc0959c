"""whyformer cite: which part of the prompt an answer comes from; of one prompt, or of every record of a log."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import whyformer as why
from whyformer.cli import destination, options, output, prompts, running
from whyformer.cli.gathering import read_text_file
from whyformer.cli.options import File, Word
from whyformer.cli.shell import app
from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._cite.log_run import CitedLog
    from whyformer._model.prompt import DocumentLike

GATE_EXIT_CODE = 8  # finished, and the condition of --fail-if holds
LOG_SUFFIXES = (".jsonl", ".ndjson")
EXAMPLES = (
    'whyformer cite passages.txt -M my/model --answer "Lisbon" --by passage -o why.html',
    'whyformer cite "Where is the fair?" --documents found.json -M my/model --answer "Lisbon" -o why.md',
    'whyformer cite --messages chat.json -M my/model --by document --select "in 1998"',
    "whyformer cite --tokens log.json -M my/model --by sentence -o citations.csv",
    "whyformer cite log.jsonl -M my/model --workers 2 -o runs/log",
)
PROMPT_HELP = f"{options.PROMPT_HELP} A .jsonl file is a log, one record a line: each is cited, and -o is a folder."
DOCUMENTS_HELP = "Documents to answer from, with ids and metadata: a JSON list, or one a line (.json .jsonl)."
BY_HELP = "passage, sentence, paragraph, document or role; default: documents if there are any, else passages."


@app.command(
    "cite",
    of="cite_log",
    without=("records",),
    examples=EXAMPLES,
    prompt=PROMPT_HELP,
    documents=(DOCUMENTS_HELP, "FILE"),
    by=(BY_HELP, "UNIT"),
    within=("Only sources in this region, or in this text of the prompt.", "TEXT"),
    select=("The part of the answer to cite sources for.", "TEXT"),
    effort=("fast (scores alone), checked (14 forwards) or thorough.", "EFFORT"),
    checker=("A model of two texts: whether a source states a sentence.", "MODEL"),
    fail_if=('Exit with 8 if this holds for a log, such as "no_source > 5%".', "CONDITION"),
)
def run_cite(
    *, prompt: Word, model: str = prompts.DEFAULT_LANGUAGE_MODEL, prompt_file: Word, answer: Word, messages: Word,
    tokens: Word, documents: Word, by: Word, within: Word, select: Word, method: Word, effort: str = "checked",
    checker: Word, max_new_tokens: int = 20, fail_if: Word, out: File, **engine: Any,
) -> None:  # fmt: skip
    """What the answer to a prompt, and each of its sentences, rests on: passages, sentences, documents or roles."""
    from whyformer._cite.effort import choose_effort
    from whyformer._explain.method_call import choose_method

    chosen = None if method is None else choose_method(method, {}).method
    settings: dict[str, Any] = {"by": by, "within": within, "effort": effort, "checker": checker}
    if prompt is not None and Path(prompt).suffix.lower() in LOG_SUFFIXES:
        given = {"--prompt": prompt_file, "--answer": answer, "--messages": messages, "--tokens": tokens}
        check_log_options(prompt, out, given | {"--documents": documents, "--select": select})
        if fail_if is not None:
            why.LogSummary(0, 0).fails(fail_if)  # refuse a condition that cannot be read before the log is cited
        running.silence_libraries()
        output.print_to_terminal(f"{choose_effort(effort).says}, for each record")
        return show_run(why.cite_log(model, prompt, out=str(out), method=method, **settings, **engine), fail_if)
    if fail_if is not None:
        raise InputError("--fail-if is for a log, a .jsonl file.", code="E_USAGE")
    source = prompts.PromptSource(None if prompt is None else [prompt], prompt_file, answer, messages, tokens)
    source.check()
    destination.check_out_file(out, [*source.files, *([documents] if documents else [])], why.Citations.formats)
    found = None if documents is None else read_document_file(documents)
    opened = running.open_quietly(model, engine.get("device"))
    read = source.make_prompt(opened, found)
    if not read.answer:
        read = why.generate(opened, read, max_new_tokens=max_new_tokens)
    output.print_to_terminal(choose_effort(effort).says)
    running.show_result(why.cite(opened, read, select=select, method=chosen, **settings), out)


def check_log_options(log: str, out: Path | None, given: dict[str, str | None]) -> None:
    """Refuse options that a log has in its records, before a model is opened."""
    if extra := [option for option, value in given.items() if value is not None]:
        raise InputError(f"{log!r} is a log: its records say that. Leave out {' and '.join(extra)}.", code="E_USAGE")
    if out is None:
        raise InputError(f"{log!r} is a log. Name a folder for its rows: -o runs/log.", code="E_USAGE")
    destination.check_out_folder(out)


def read_document_file(path: str) -> "list[DocumentLike]":
    """The documents in a file: a JSON list, or one JSON value a line."""
    text = read_text_file(path)
    try:
        if Path(path).suffix.lower() in LOG_SUFFIXES:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path!r} is not valid JSON: {str(error)[:100]}.") from None
    return found if isinstance(found, list) else [found]


def show_run(run: "CitedLog", fail_if: str | None) -> None:
    """Print what the log says as a whole; the exit status says whether the gate failed, or else some records."""
    summary = run.summarise()
    running.show_result(summary)
    holds = fail_if is not None and summary.fails(fail_if)
    running.end_run(run.folder, failed=0 if holds else run.failed)
    if holds:
        output.print_to_terminal(f"The condition holds: {fail_if}")
        raise typer.Exit(GATE_EXIT_CODE)
