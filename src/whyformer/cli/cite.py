"""whyformer cite: which part of the prompt an answer comes from."""

from typing import Annotated

import whyformer as why
from whyformer.cli import destination, options, prompts, running
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    'whyformer cite passages.txt -M my/model --answer "Lisbon" --by passage -o why.html',
    'whyformer cite --messages chat.json -M my/model --by document --select "in 1998"',
    "whyformer cite --tokens log.json -M my/model --by sentence -o citations.csv",
)


@app.command("cite", epilog=EXAMPLES)
def run_cite(
    prompt: prompts.PromptArgument = None,
    model: options.ModelOption = "demo/decoder",
    file: prompts.PromptFileOption = None,
    answer: prompts.AnswerOption = None,
    messages: prompts.MessagesOption = None,
    tokens: prompts.TokensFileOption = None,
    by: Annotated[
        str, make_option("--by", "passage, sentence, paragraph, document or role.", "UNIT", show_default=True)
    ] = "passage",
    within: Annotated[
        Word, make_option("--within", "Only sources in this region, or in this text of the prompt.", "TEXT")
    ] = None,
    select: Annotated[Word, make_option("--select", "The part of the answer to cite sources for.", "TEXT")] = None,
    method: Annotated[Word, options.make_method_option("See: whyformer methods.")] = None,
    verify: Annotated[int, make_option("--verify", "Top sources to leave out.", "N", min=0, show_default=True)] = 3,
    samples: Annotated[int, make_option("--samples", "Random ablations.", "N", min=0, show_default=True)] = 32,
    max_new_tokens: Annotated[
        int, make_option("-n --max-new-tokens", "Tokens to generate at most, without --answer.", min=1)
    ] = 20,
    seed: Annotated[int, make_option("--seed", "Of the random ablations.", min=0, show_default=True)] = 0,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Score the passages, sentences, documents or roles of a prompt for its answer, and verify the highest."""
    from whyformer._cite.run import CITE_METHOD
    from whyformer._explain.method_call import choose_method

    source = prompts.PromptSource(None if prompt is None else [prompt], file, answer, messages, tokens)
    source.check()
    chosen = choose_method(method or CITE_METHOD, {}).method
    destination.check_out_file(out, source.files, why.Citations.formats)
    opened = running.open_quietly(model)
    given = source.make_prompt(opened)
    if not given.answer:
        given = why.generate(opened, given, max_new_tokens=max_new_tokens)
    cited = why.cite(
        opened, given, by, within=within, select=select, method=chosen, verify=verify, samples=samples, seed=seed
    )
    running.show_result(cited, out, as_json=as_json)
