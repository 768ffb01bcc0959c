"""whyformer cite: which part of the prompt an answer comes from; of one prompt, or of every record of a log."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, output, prompts, running
from whyformer.cli.gathering import read_text_file
from whyformer.cli.options import Number, Word, list_examples, make_option
from whyformer.cli.shell import FAILED_EXIT_CODE, GATE_EXIT_CODE, app
from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._cite.log_run import CitedLog
    from whyformer._model.prompt import DocumentLike

LOG_SUFFIXES = (".jsonl", ".ndjson")
EXAMPLES = list_examples(
    'whyformer cite passages.txt -M my/model --answer "Lisbon" --by passage -o why.html',
    'whyformer cite "Where is the fair?" --documents found.json -M my/model --answer "Lisbon" -o why.md',
    'whyformer cite --messages chat.json -M my/model --by document --select "in 1998"',
    "whyformer cite --tokens log.json -M my/model --by sentence -o citations.csv",
    "whyformer cite log.jsonl -M my/model --workers 2 -o runs/log",
)
PROMPT_HELP = f"{prompts.PROMPT_HELP} A .jsonl file is a log, one record a line: each is cited, and -o is a folder."
DOCUMENTS_HELP = "Documents to answer from, with ids and metadata: a JSON list, or one a line (.json .jsonl)."
BY_HELP = "passage, sentence, paragraph, document or role; default: documents if there are any, else passages."


@app.command("cite", epilog=EXAMPLES)
def run_cite(
    prompt: Annotated[Word, typer.Argument(metavar="PROMPT", help=PROMPT_HELP, show_default=False)] = None,
    model: options.ModelOption = "demo/decoder",
    file: prompts.PromptFileOption = None,
    answer: prompts.AnswerOption = None,
    messages: prompts.MessagesOption = None,
    tokens: prompts.TokensFileOption = None,
    documents: Annotated[Word, make_option("--documents", DOCUMENTS_HELP, "FILE")] = None,
    by: Annotated[Word, make_option("--by", BY_HELP, "UNIT")] = None,
    within: Annotated[
        Word, make_option("--within", "Only sources in this region, or in this text of the prompt.", "TEXT")
    ] = None,
    select: Annotated[Word, make_option("--select", "The part of the answer to cite sources for.", "TEXT")] = None,
    method: Annotated[Word, options.make_method_option("See: whyformer methods.")] = None,
    effort: Annotated[
        str, make_option("--effort", "fast (scores alone), checked (14 forwards) or thorough.", "EFFORT")
    ] = "checked",
    checker: Annotated[
        Word, make_option("--checker", "A model of two texts that judges whether a source states a sentence.", "MODEL")
    ] = None,
    max_new_tokens: Annotated[
        int, make_option("-n --max-new-tokens", "Tokens to generate at most, without --answer.", min=1)
    ] = 20,
    device: options.DeviceOption = None,
    engine: Annotated[str, make_option("--engine", "Where the workers of a log run: local or ray.")] = "local",
    address: Annotated[Word, make_option("--address", "The Ray cluster to join.")] = None,
    workers: Annotated[Number, make_option("--workers", "Worker processes of a log.", "N")] = None,
    shard: Annotated[Number, make_option("--shard", "Records of a log per file.", "N")] = None,
    threads: Annotated[Number, make_option("--threads", "Threads of each worker; default: 1.", "N")] = None,
    limit: options.LimitOption = None,
    retry_failed: Annotated[bool, make_option("--retry-failed", "Try records that failed again.")] = False,
    fail_if: Annotated[
        Word, make_option("--fail-if", 'Exit with 8 if this holds for a log, such as "no_source > 5%".', "CONDITION")
    ] = None,
    grow: Annotated[bool, make_option("--grow", "The log has more records than before; cite only those.")] = False,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """What the answer to a prompt, and each of its sentences, rests on: passages, sentences, documents or roles."""
    from whyformer._cite.effort import describe_effort
    from whyformer._explain.method_call import choose_method

    chosen = None if method is None else choose_method(method, {}).method
    if prompt is not None and Path(prompt).suffix.lower() in LOG_SUFFIXES:
        given = {"--prompt": file, "--answer": answer, "--messages": messages, "--tokens": tokens}
        given |= {"--documents": documents, "--select": select}
        check_log_options(prompt, out, given)
        if fail_if is not None:
            why.LogSummary(0, 0).fails(fail_if)  # refuse a condition that cannot be read before the log is cited
        running.silence_libraries()
        output.print_to_terminal(f"{describe_effort(effort)}, for each record")
        run = why.cite_log(
            model, prompt, out=str(out), by=by, device=device, engine=engine, address=address, workers=workers,
            shard=shard, threads=threads, limit=limit, retry_failed=retry_failed, grow=grow,
            within=within, method=method, effort=effort, checker=checker,
        )  # fmt: skip
        return show_run(run, fail_if, as_json=as_json)
    if fail_if is not None:
        raise InputError("--fail-if is for a log, a .jsonl file.", code="E_USAGE")
    source = prompts.PromptSource(None if prompt is None else [prompt], file, answer, messages, tokens)
    source.check()
    files = [*source.files, *([documents] if documents else [])]
    destination.check_out_file(out, files, why.Citations.formats)
    found = None if documents is None else read_document_file(documents)
    opened = running.open_quietly(model, device)
    read = source.make_prompt(opened, found)
    if not read.answer:
        read = why.generate(opened, read, max_new_tokens=max_new_tokens)
    output.print_to_terminal(describe_effort(effort))
    cited = why.cite(opened, read, by, within=within, select=select, method=chosen, effort=effort, checker=checker)
    running.show_result(cited, out, as_json=as_json)


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


def show_run(run: "CitedLog", fail_if: str | None, *, as_json: bool) -> None:
    """Print what the log says as a whole; the exit status says whether the gate failed, or else some records."""
    summary = run.summarise()
    running.show_result(summary, as_json=as_json)
    output.print_saved(run.folder)
    if fail_if is not None and summary.fails(fail_if):
        output.print_to_terminal(f"The condition holds: {fail_if}")
        raise typer.Exit(GATE_EXIT_CODE)
    if run.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
