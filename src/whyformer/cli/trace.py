"""whyformer trace: where an answer came from, through the tokens that the model generated before it."""

import re
from functools import partial
from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, prompts, running
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    'whyformer trace "k = 47 ; r = 12 ; c = k ; m = r ; print c :" --select -1 --by ";"',
    'whyformer trace "k = 47 ; r = 12 ; c = k ; print c :" --answer " c = k ; k = 47 ; answer 47" --hops 2 '
    "-o hops.json",
)


@app.command("trace", epilog=EXAMPLES)
def run_trace(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help=prompts.PROMPT_HELP)],
    model: options.ModelOption = "demo/tracking",
    method: Annotated[str, options.make_method_option("cp_lrp, attnlrp or lrp_gamma.", show_default=True)] = "cp_lrp",
    answer: Annotated[
        Word, make_option("--answer", "What the model generated; by default it generates.", "TEXT")
    ] = None,
    max_new_tokens: prompts.LengthOption = 100,
    select: Annotated[
        Word, make_option("--select", "What to explain: a part of the answer, or a token by number: -1.", "TOKENS")
    ] = None,
    hops: Annotated[int, make_option("--hops", "How many times relevance is sent on at most.", min=0)] = 8,
    by: Annotated[
        Word,
        make_option("--by", "Regions of the prompt: passage, paragraph, sentence, or what they end with: ;", "UNIT"),
    ] = None,
    health: Annotated[bool, make_option("--health", "Measure what the rules absorb in each hop.")] = False,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Trace an answer through the generated tokens to the prompt: each sends on the relevance that it received."""
    from whyformer._explain.hops import refuse_other_methods, trace_reasoning
    from whyformer._explain.method_call import choose_method

    refuse_other_methods(choose_method(method, {}))
    destination.check_out_file(out, [prompt], why.Hops.formats)
    opened = running.open_quietly(model)
    whole = prompts.PromptSource([prompt], answer=answer).make_prompt(opened)
    whole = why.generate(opened, whole, max_new_tokens=max_new_tokens) if answer is None else whole
    chosen = int(select) if select is not None and re.fullmatch(r"-?[0-9]{1,18}", select) else select
    regions = partial(split_after, by) if by is not None and not by.isalpha() else by
    found = trace_reasoning(opened, whole, method, hops=hops, by=regions, select=chosen, health=health)
    running.show_result(found, out, as_json=as_json)


def split_after(end: str, text: str) -> list[tuple[int, int]]:
    """The characters of each part of a text; a part ends with `end`."""
    parts = [part + end for part in text.split(end)]
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    ends[-1] = len(text)
    spans = zip([0, *ends], ends, strict=False)
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]
