"""whyformer generate: let a language model answer a prompt, and explain every generated token, or all as one."""

from typing import Any

import whyformer as why
from whyformer.cli import destination, prompts, running
from whyformer.cli.options import File, Word, make_option
from whyformer.cli.shell import app

EXAMPLES = (
    'whyformer generate "the keys to the cabinet" -o why.html',
    'whyformer generate "12 + 7 =" -m attnlrp',
    "whyformer generate --messages chat.json -M my/chat-model -n 200 --whole -o why.html",
)


@app.command(
    "generate",
    of="generate",
    examples=EXAMPLES,
    method="See: whyformer methods.",
    continuation=("Explain this continuation instead of the model's own.", "TEXT"),
    whole="Explain the continuation as a whole, in one pass, not token by token.",
    seed=make_option("--seed", "The same seed draws the same tokens.", "N", min=0),
)
def run_generate(
    *, prompt: Word, prompt_file: Word, messages: Word, model: str = prompts.DEFAULT_LANGUAGE_MODEL,
    method: str = "libragrad", continuation: Word, whole: bool, seed: int = 0, out: File, **drawing: Any,
) -> None:  # fmt: skip
    """Generate text and explain each token; -o why.html saves a page to click through them."""
    from whyformer._explain.method_call import choose_method

    choose_method(method, {})
    source = prompts.PromptSource(None if prompt is None else [prompt], prompt_file, None, messages)
    source.check("one text, --prompt FILE or --messages FILE")
    destination.check_out_file(out, source.files, why.Explanation.formats if whole else why.Generation.formats)
    opened = running.open_quietly(model)
    given = source.make_prompt(opened)
    drawing["seed"] = seed
    if not whole:
        running.show_result(why.explain_generation(opened, given, method, continuation=continuation, **drawing), out)
        return
    answered = why.generate(opened, given, **drawing) if continuation is None else given
    running.show_result(why.explain(opened, answered, method, answer=continuation), out)
