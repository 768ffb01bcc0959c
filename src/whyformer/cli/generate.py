"""whyformer generate: let a language model answer a prompt, and explain every generated token, or all as one."""

from typing import Annotated

import whyformer as why
from whyformer.cli import destination, options, prompts, running
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    'whyformer generate "the keys to the cabinet" -o why.html',
    'whyformer generate "12 + 7 =" -m attnlrp',
    "whyformer generate --messages chat.json -M my/chat-model -n 200 --whole -o why.html",
)


@app.command("generate", epilog=EXAMPLES)
def run_generate(
    prompt: prompts.PromptArgument = None,
    file: prompts.PromptFileOption = None,
    messages: prompts.MessagesOption = None,
    model: options.ModelOption = "demo/decoder",
    method: Annotated[str, options.make_method_option("See: whyformer methods.", show_default=True)] = "libragrad",
    max_new_tokens: prompts.LengthOption = 20,
    continuation: Annotated[
        Word, make_option("--continuation", "Explain this continuation instead of the model's own.")
    ] = None,
    whole: Annotated[
        bool, make_option("--whole", "Explain the continuation as a whole, in one pass, not token by token.")
    ] = False,
    temperature: Annotated[
        float, make_option("--temperature", "0 takes the most likely token; above 0, tokens are drawn.", min=0)
    ] = 0.0,
    top_p: Annotated[
        float, make_option("--top-p", "Draw from the fewest tokens that together have this probability.")
    ] = 1.0,
    seed: Annotated[int, make_option("--seed", "The same seed draws the same tokens.", min=0)] = 0,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Generate text and explain each token; -o why.html saves a page to click through them."""
    from whyformer._explain.method_call import choose_method

    choose_method(method, {})
    source = prompts.PromptSource(None if prompt is None else [prompt], file, None, messages)
    source.check("one text, --prompt FILE or --messages FILE")
    destination.check_out_file(out, source.files, why.Explanation.formats if whole else why.Generation.formats)
    opened = running.open_quietly(model)
    given = source.make_prompt(opened)
    if not whole:
        result = why.explain_generation(
            opened, given, method, max_new_tokens=max_new_tokens, continuation=continuation,
            temperature=temperature, top_p=top_p, seed=seed,
        )  # fmt: skip
        running.show_result(result, out, as_json=as_json)
        return
    if continuation is None:
        given = why.generate(
            opened, given, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
        )
    running.show_result(why.explain(opened, given, method, answer=continuation), out, as_json=as_json)
