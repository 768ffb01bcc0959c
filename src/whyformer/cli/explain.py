"""whyformer explain: which patches or words matter for the answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import whyformer as why
from whyformer.cli import destination, options, output, parsing, prompts, running
from whyformer.cli.compare import choose_comparison_methods, run_compare
from whyformer.cli.gathering import gather_inputs
from whyformer.cli.options import Number, Word, Words, list_examples, make_option
from whyformer.cli.shell import app
from whyformer.errors import MethodError

EXAMPLES = list_examples(
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


@app.command("explain", epilog=EXAMPLES)
def run_explain(
    inputs: options.InputsArgument = None,
    pair: options.PairOption = None,
    model: options.ModelOption = options.DEFAULT_MODEL,
    method: Annotated[
        Words,
        options.make_method_option(
            "See: whyformer methods. Repeat it to compare several. "
            "Default: gamma_attribution for images, libragrad for texts."
        ),
    ] = None,
    target: options.TargetOption = None,
    versus: options.VersusOption = None,
    setting: Annotated[Words, make_option("-s --setting", "A setting of the method; repeatable.", "NAME=VALUE")] = None,
    classes: Annotated[
        Number, make_option("--classes", "Explain the K most likely classes side by side.", "K", min=1)
    ] = None,
    windows: options.WindowsOption = False,
    overlap: options.OverlapOption = None,
    prompt: prompts.PromptFileOption = None,
    answer: prompts.AnswerOption = None,
    precision: Annotated[
        Word, make_option("--precision", "Run in float32 or float64 instead of the model's own.", "DTYPE")
    ] = None,
    health: Annotated[
        bool, make_option("--health", "Check whether relevance is conserved, and whether rounding changes the scores.")
    ] = False,
    check: Annotated[
        bool,
        make_option(
            "--check/--no-check",
            "Ask the model again with the highest words hidden, and with everything hidden. "
            "By default for texts of up to 512 tokens and for images.",
        ),
    ] = True,
    messages: prompts.MessagesOption = None,
    tokens: prompts.TokensFileOption = None,
    words: Annotated[bool, make_option("--words", "Score whole words instead of tokens.")] = False,
    sentences: Annotated[bool, make_option("--sentences", "Score whole sentences.")] = False,
    paragraphs: Annotated[bool, make_option("--paragraphs", "Score whole paragraphs.")] = False,
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show which patches or words matter for the answer. Without arguments, runs on the bundled demo model."""
    units = {"words": words, "sentences": sentences, "paragraphs": paragraphs}
    wanted = [unit for unit, chosen in units.items() if chosen]
    if len(wanted) > 1:
        raise MethodError(f"--{wanted[0]} and --{wanted[1]} cannot be combined. Choose one.", code="E_USAGE")
    settings = parsing.parse_settings(setting or [])
    settings |= {name: value for name, value in (("precision", precision), ("health", health)) if value}
    split = options.choose_windows(windows, overlap)
    source = prompts.PromptSource(inputs, prompt, answer, messages, tokens)
    has_several = len(method or []) > 1
    if source.is_given:
        others = {"--windows": split is not False, "--pair": pair, "--classes": classes}
        parsing.refuse_unused_options(others, "a prompt", "Leave it out.")
        parsing.refuse_unused_options({"Several methods": has_several}, "a prompt")
    elif has_several or classes is not None:
        single = {"--precision": precision, "--health": health, "-s": settings, "--windows": split is not False}
        single |= {f"--{unit}": chosen for unit, chosen in units.items()}
        parsing.refuse_unused_options(single, "several methods or --classes")
    if classes is not None:
        parsing.refuse_unused_options({"--target": target, "--versus": versus}, "--classes")
        explain_classes_and_show(inputs, pair, model, method, classes, out, as_json=as_json)
        return
    if has_several:
        run_compare(inputs, pair, model, method, target, versus, out, as_json)
        return
    from whyformer._explain.default_method import DEFAULT_METHODS
    from whyformer.results.joining import join_explanations

    name = method[0] if method else None
    asks = None if check else False  # where it costs little
    if source.is_given:
        source.check()
        model = prompts.DEFAULT_LANGUAGE_MODEL if model == options.DEFAULT_MODEL else model
    default = DEFAULT_METHODS["images"] if model == options.DEFAULT_MODEL else None
    check_method_call(name or default, settings)
    destination.check_out_file(out, source.files, why.Explanation.formats)
    opened = running.open_quietly(model)
    if source.is_given:
        targets = parsing.parse_targets(opened, target, versus)
        given = source.make_prompt(opened)
        explanation = why.explain(opened, given, name, **targets, check=asks, **settings)
    else:
        given = None
        check_method_call(name or DEFAULT_METHODS.get(f"{opened.kind}s"), settings)
        items = gather_inputs(opened, inputs, pair)
        batches = running.iterate_batches(items, parsing.parse_targets(opened, target, versus))
        parts = [
            why.explain(opened, batch, name, **aim, windows=split, check=asks, **settings) for batch, aim in batches
        ]
        explanation = join_explanations(parts)
    for unit in wanted:
        explanation = getattr(explanation, unit)()
    running.show_result(explanation, out, as_json=as_json)
    if (health if given is None else settings.get("health")) and not as_json:
        output.print_prose(f"\n{explanation.health}\n{explanation.conditioning}")
    if given is not None and given.logged is not None and not as_json:
        output.print_prose(f"\n{why.check_answer(opened, given).verdict}")


def check_method_call(name: str | None, settings: Mapping[str, Any]) -> None:
    """Report misspelt names before a large model is opened; the default is known only then (None)."""
    from whyformer._explain.method_call import choose_method

    if name is not None:
        choose_method(name, settings)


def explain_classes_and_show(
    inputs: Words, pair: Words, model: str, method: Words, classes: int, out: Path | None, *, as_json: bool
) -> None:
    """Explain the most likely classes."""

    methods = choose_comparison_methods(method)
    destination.check_out_file(out, inputs, why.ClassGrid.formats)
    opened = running.open_quietly(model)
    grid = why.explain_classes(opened, gather_inputs(opened, inputs, pair), methods or None, classes=classes)
    running.show_result(grid, out, as_json=as_json)
