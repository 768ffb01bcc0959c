"""whyformer trace: where an answer came from, through the tokens that the model generated before it."""

import re
from functools import partial
from typing import Any

import whyformer as why
from whyformer.cli import destination, prompts, running
from whyformer.cli.options import File, Word, make_option
from whyformer.cli.shell import app

EXAMPLES = (
    'whyformer trace "k = 47 ; r = 12 ; c = k ; m = r ; print c :" --select -1 --by ";"',
    'whyformer trace "k = 47 ; r = 12 ; c = k ; print c :" --answer " c = k ; k = 47 ; answer 47" --hops 2 '
    "-o hops.json",
)


@app.command(
    "trace",
    of="trace_reasoning",
    without=("target", "versus", "steps"),
    examples=EXAMPLES,
    method="cp_lrp, attnlrp or lrp_gamma.",
    answer=("What the model generated; by default it generates.", "TEXT"),
    select=("What to explain: a part of the answer, or a token by number: -1.", "TOKENS"),
    hops=make_option("--hops", "How many times relevance is sent on at most.", "N", min=0),
    by=("Regions of the prompt: passage, paragraph, sentence, or what they end with: ;", "UNIT"),
    health="Measure what the rules absorb in each hop.",
)
def run_trace(
    *, prompt: str, model: str = "demo/tracking", method: str = "cp_lrp", answer: Word, max_new_tokens: int = 100,
    select: Word, by: Word, health: bool, out: File, **settings: Any,
) -> None:  # fmt: skip
    """Trace an answer through the generated tokens to the prompt: each sends on the relevance that it received."""
    from whyformer._explain.hops import refuse_other_methods
    from whyformer._explain.method_call import choose_method

    refuse_other_methods(choose_method(method, {}))
    destination.check_out_file(out, [prompt], why.Hops.formats)
    opened = running.open_quietly(model)
    whole = prompts.PromptSource([prompt], answer=answer).make_prompt(opened)
    whole = why.generate(opened, whole, max_new_tokens=max_new_tokens) if answer is None else whole
    chosen = int(select) if select is not None and re.fullmatch(r"-?[0-9]{1,18}", select) else select
    regions = partial(split_after, by) if by is not None and not by.isalpha() else by
    found = why.trace_reasoning(opened, whole, method, by=regions, select=chosen, health=health, **settings)
    running.show_result(found, out)


def split_after(end: str, text: str) -> list[tuple[int, int]]:
    """The characters of each part of a text; a part ends with `end`."""
    parts = [part + end for part in text.split(end)]
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    ends[-1] = len(text)
    spans = zip([0, *ends], ends, strict=False)
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]
