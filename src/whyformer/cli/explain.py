"""whyformer explain: which patches or words matter for the answer."""

from collections.abc import Mapping
from typing import Any

import whyformer as why
from whyformer.cli import destination, output, parsing, prompts, running
from whyformer.cli.compare import choose_comparison_methods, run_compare
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import DEFAULT_MODEL, File, Number, Word, Words, make_option
from whyformer.cli.shared_options import AS_JSON
from whyformer.cli.shell import app
from whyformer.errors import MethodError

EXAMPLES = (
    "whyformer explain",
    "whyformer demo --sample cat.jpg",
    "whyformer explain cat.jpg -o cat.html",
    "whyformer explain photos/ -m gamma_attribution -m rollout -o methods.html",
    "whyformer explain cat.jpg --classes 3 -o classes.png",
    'whyformer explain "a gorgeous, witty film" -M demo/sentiment',
    'whyformer explain "the keys to the cabinet" -M demo/decoder -t " are" --versus " is"',
    'whyformer explain "the lamp is old. it looks wet." --pair "the lamp is dry." -M demo/entailment',
    'whyformer explain "the keys to the cabinet" -M demo/decoder --answer " are gone" --versus " is"',
    'whyformer explain --messages chat.json -M my/chat-model -t "answer-text:Paris" -o why.html',
    'whyformer explain shapes.png "what colour is the circle ?" -M demo/questions',
    "whyformer explain report.txt -M demo/sentiment --windows --sentences",
    "cat reviews.txt | whyformer explain - -M demo/sentiment -o scores.csv",
)


METHOD_HELP = (
    "See: whyformer methods. Repeat it to compare several. Default: gamma_attribution for images, libragrad for texts."
)
CHECK_HELP = (
    "Ask the model again with the highest words hidden, and with everything hidden. By default for texts of up to 512 "
    "tokens and for images."
)


@app.command(
    "explain",
    examples=EXAMPLES,
    methods=METHOD_HELP,
    settings=("A setting of the method; repeatable.", "NAME=VALUE", "-s --setting"),
    classes=make_option("--classes", "Explain the K most likely classes side by side.", "K", min=1),
    precision=("Run in float32 or float64 instead of the model's own.", "DTYPE"),
    health="Check whether relevance is conserved, and whether rounding changes the scores.",
    check=(CHECK_HELP, None, "--check/--no-check"),
    words="Score whole words instead of tokens.",
    sentences="Score whole sentences.",
    paragraphs="Score whole paragraphs.",
)
def run_explain(
    *, inputs: Words, pair: Words, model: str = DEFAULT_MODEL, methods: Words, targets: Words, versus: Word,
    settings: Words, classes: Number, windows: bool, overlap: Number, prompt_file: Word, answer: Word, precision: Word,
    health: bool, check: bool = True, messages: Word, tokens: Word, words: bool, sentences: bool, paragraphs: bool,
    out: File,
) -> None:  # fmt: skip
    """Show which patches or words matter for the answer. Without arguments, runs on the bundled demo model."""
    units = {"words": words, "sentences": sentences, "paragraphs": paragraphs}
    wanted = [unit for unit, chosen in units.items() if chosen]
    if len(wanted) > 1:
        raise MethodError(f"--{wanted[0]} and --{wanted[1]} cannot be combined. Choose one.", code="E_USAGE")
    given = parsing.parse_settings(settings or [])
    given |= {name: value for name, value in (("precision", precision), ("health", health)) if value}
    given |= {"windows": windows if overlap is None else overlap, "check": None if check else False}
    source = prompts.PromptSource(inputs, prompt_file, answer, messages, tokens)
    has_several = len(methods or []) > 1
    if source.is_given:
        others = {"--windows": given["windows"] is not False, "--pair": pair, "--classes": classes}
        parsing.refuse_unused_options(others, "a prompt", "Leave it out.")
        parsing.refuse_unused_options({"Several methods": has_several}, "a prompt")
    elif has_several or classes is not None:
        single = {"--precision": precision, "--health": health, "-s": settings}
        single |= {"--windows": given["windows"] is not False} | {f"--{unit}": chosen for unit, chosen in units.items()}
        parsing.refuse_unused_options(single, "several methods or --classes")
    if classes is not None:
        parsing.refuse_unused_options({"--target": targets, "--versus": versus}, "--classes")
        chosen = choose_comparison_methods(methods)
        destination.check_out_file(out, inputs, why.ClassGrid.formats)
        opened = running.open_quietly(model)
        grid = why.explain_classes(opened, gather_inputs(opened, inputs, pair), chosen, classes=classes)
        return running.show_result(grid, out)
    if has_several:
        return run_compare(
            inputs=inputs, pair=pair, model=model, methods=methods, targets=targets, versus=versus, out=out
        )
    from whyformer._explain.default_method import DEFAULT_METHODS
    from whyformer.results.joining import join_explanations

    name = methods[0] if methods else None
    if source.is_given:
        source.check()
        model = prompts.DEFAULT_LANGUAGE_MODEL if model == DEFAULT_MODEL else model
    default = DEFAULT_METHODS["images"] if model == DEFAULT_MODEL else None
    check_method_call(name or default, given)
    destination.check_out_file(out, source.files, why.Explanation.formats)
    opened = running.open_quietly(model)
    aims = parsing.parse_targets(opened, targets, versus)
    if source.is_given:
        read = source.make_prompt(opened)
        explanation = why.explain(opened, read, name, **aims, **given)
    else:
        check_method_call(name or DEFAULT_METHODS.get(f"{opened.kind}s"), given)
        batches = running.iterate_batches(gather_inputs(opened, inputs, pair), aims)
        explanation = join_explanations([why.explain(opened, batch, name, **aim, **given) for batch, aim in batches])
    for unit in wanted:
        explanation = getattr(explanation, unit)()
    running.show_result(explanation, out)
    if AS_JSON.get():
        return
    if given.get("health"):
        output.print_prose(f"\n{explanation.health}\n{explanation.conditioning}")
    if source.is_given and read.logged is not None:
        output.print_prose(f"\n{why.check_answer(opened, read).verdict}")


def check_method_call(name: str | None, settings: Mapping[str, Any]) -> None:
    """Report misspelt names before a large model is opened; the default is known only then (None)."""
    from whyformer._explain.method_call import choose_method

    if name is not None:
        choose_method(name, {name: value for name, value in settings.items() if name not in ("windows", "check")})
