"""Explain a prediction by one method.

    e = explain(model, "cat.png")              the predicted class, by the default method for images
    e.top(3); e.map(); print(e); e.save("cat.safetensors")

Choose the method, record what it needs in one run of the model, and compute the scores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from torch import nn

from whyformer._engine import Capture, TargetLike, pick_target
from whyformer._explain.alternatives import name_alternatives
from whyformer._explain.default_method import STAND_INS, choose_default_method
from whyformer._explain.hiding import add_hiding, is_cheap_to_hide
from whyformer._explain.method_call import MethodCall, MethodLike, choose_method
from whyformer._explain.picture_streams import lists_pictures
from whyformer._explain.sharing import explain_by_call, record_for_methods
from whyformer._explain.token_generation import write_out
from whyformer._explain.tower_tracing import choose_tower, explain_through_tower
from whyformer._explain.windows import WindowedTexts
from whyformer._model import EncodedBatch, InputLike, Model, ModelLike, OneInput, check_windows
from whyformer._model.loading import open as open_model
from whyformer._model.prompt import Prompt, add_answer
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, UnsupportedModel
from whyformer.methods._registry import Setting
from whyformer.results.explanation import Explanation
from whyformer.results.joining import join_explanations


@neutral_torch()
def explain(
    model: ModelLike,
    inputs: InputLike,
    method: MethodLike | None = None,
    *,
    target: TargetLike = None,
    versus: TargetLike = None,
    answer: str | Sequence[int] | None = None,
    windows: bool | int = False,
    through_tower: bool = False,
    check: bool | None = False,
    **settings: Setting,
) -> Explanation:
    """How much each patch or token of the inputs counts for the target, by default the model's own prediction.

    inputs: a path, image, text, array, tensor or dict of tensors, or a list of these; a pandas Series or another column
    of a table is a list. An image array is [height, width, channel] of 0 to 255, or of floats from 0 to 1. Two texts
    that the model reads together are a `TextPair`; what a language model read and answered is a `Prompt`; for a model
    that reads images between words, {"image": "cat.jpg", "text": "What is this?"}, or what its processor makes of them.
    method: a name, a method or a partial of one; by default the one that was measured best for this kind of input,
    "gamma_attribution" for images and "libragrad" for texts.
    target, versus: a class by index or label, or a next token of a language model; one for all examples, or one each.
    Others are in whyformer.targets: groups, tokens, entities, answer spans; `target` can also be a function of what the
    model returns. By default what the model itself answers.
    answer: what a language model answered to the text, a text or token ids; by default the target is the sum of the
    logits of all its tokens, in one pass. Parts of it, log-probabilities and contrasts: targets.Answer.
    For a model that compares images with texts, "logits_per_text" explains the text instead of the image.
    windows=True: a text that is too long for the model is explained in overlapping windows; a number says how many
    tokens neighbouring windows share, by default a quarter of a window. A score is the mean over the windows of the
    token, the target by default the class with the largest mean logit; `Explanation.windows` has each window's answer.
    through_tower=True: the scores of images between words are traced through the vision tower, to the patches that
    enter it; by attnlrp unless another method that can is given.
    check=True: the model is asked again with the highest words or patches hidden, and with everything hidden
    (`Explanation.hiding`): an answer that does not change does not depend on them. None: for images and for texts of up
    to 512 tokens, unless weights are offloaded.
    health=True: methods that propagate relevance also check whether it is conserved (`Explanation.health`), and run
    again to measure how much rounding changes the scores (`Explanation.conditioning`).
    precision: "float32" or "float64", if not the model's own; the weights are copied for the call.
    samples: of a model that answers at random, the mean of the scores over so many runs with seeds 0, 1, ...
    """
    call = choose_method(method, settings) if method is not None else None
    if windows is not False:
        windows = check_windows(windows)
    if isinstance(inputs, Model | nn.Module):
        raise InputError("The inputs are a model. The model comes first: explain(model, inputs).")
    model = as_model(model)
    if not isinstance(check, bool | None):
        raise InputError(f"check must be True, False or None, got {check!r}.", code="E_OPTION")
    if check and (windows is not False or through_tower):
        option = "windows" if windows is not False else "through_tower"
        raise InputError(f"check and {option} cannot be combined. Choose one.", code="E_OPTION")
    if lists_pictures(inputs, model):
        return explain_each(model, inputs, call, target, versus, settings, check=check)
    if answer is not None:
        inputs = add_answer_to_text(model, inputs, answer, windows)
    if windows is not False:
        texts = WindowedTexts(model, inputs, windows)
        explain_windows = partial(texts.explain_by_one, target=target, versus=versus)
        return explain_by_choice(call, texts.encoded[0], settings, explain_windows)
    inputs, target = write_out(model, inputs, target)
    encoded, target = choose_tower(model, model.encode(inputs), target)
    if through_tower:
        call = call or choose_method("attnlrp", settings)
        return explain_through_tower(call, model, encoded, target, versus)
    return explain_encoded(model, encoded, call, target, versus, settings, check=check)


def explain_encoded(
    model: Model,
    encoded: EncodedBatch,
    call: MethodCall | None,
    target: TargetLike,
    versus: TargetLike = None,
    settings: Mapping[str, Setting] = MappingProxyType({}),
    *,
    check: bool | None = False,
) -> Explanation:
    """By this method, or by default (None) with these settings. A refusal names the methods that work."""

    checks = is_cheap_to_hide(model, encoded) if check is None else check

    def explain_by(call: MethodCall) -> Explanation:
        capture = record_for_methods([call], model, encoded, target, versus, ("probe",) if checks else ())
        explanation = explain_by_call(call, model, encoded, capture)
        return add_hiding(explanation, capture["probe"]) if checks else explanation

    with name_alternatives(call, model, encoded, target):
        return explain_by_choice(call, encoded, settings, explain_by)


def explain_and_probe(
    model: Model, encoded: EncodedBatch, call: MethodCall, target: TargetLike
) -> tuple[Explanation, Capture]:
    """The explanation, and the capture it is from, with a probe of the same target: no forward runs twice."""
    with name_alternatives(call, model, encoded, target):
        capture = record_for_methods([call], model, encoded, target, None, extra_sites=("probe",))
        return explain_by_call(call, model, encoded, capture), capture


def explain_each(
    model: Model,
    inputs: Sequence[OneInput],
    call: MethodCall | None,
    target: TargetLike,
    versus: TargetLike,
    settings: Mapping[str, Setting],
    *,
    check: bool | None,
) -> Explanation:
    """Examples that cannot share a batch, one after the other, as one explanation."""
    count = len(inputs)
    aims = [(pick_target(target, i, count), pick_target(versus, i, count)) for i in range(count)]
    encoded = [model.encode(one) for one in inputs]
    each = zip(encoded, aims, strict=True)
    return join_explanations([explain_encoded(model, one, call, *aim, settings, check=check) for one, aim in each])


def add_answer_to_text(model: Model, inputs: InputLike, answer: str | Sequence[int], windows: bool | int) -> Prompt:
    """The text or Prompt with this answer."""
    if windows is not False:
        raise InputError("A prompt with an answer cannot be split into windows. Leave windows= out.", code="E_OPTION")
    if isinstance(inputs, Prompt):
        return add_answer(model, inputs.without_answer(), answer)
    if not isinstance(inputs, str):
        raise InputError(
            f"answer= belongs to one text, got {type(inputs).__name__}. Pass a text, or a list of Prompts, each with "
            "its answer.",
            code="E_OPTION",
        )
    return Prompt.from_text(model, inputs, answer)


def explain_by_choice(
    call: MethodCall | None,
    encoded: EncodedBatch,
    settings: Mapping[str, Setting],
    explain_by: Callable[[MethodCall], Explanation],
) -> Explanation:
    """By this method; else by the default or, on a model that it does not work with, by its stand-in with a note."""
    if call is not None:
        return explain_by(call)
    name = choose_default_method(encoded)
    call = choose_method(name, settings)
    can_stand_in, why_not = name in STAND_INS and not settings, ""
    try:
        e = explain_by(call)
        if e.signed and can_stand_in and has_zero_rows(e):
            other = explain_by(choose_method(STAND_INS[name], {}))
            if has_zero_rows(other):
                return e
            e, why_not = other, "gives 0 everywhere."
    except UnsupportedModel as error:
        if not can_stand_in:
            raise
        e, why_not = explain_by(choose_method(STAND_INS[name], {})), f"does not work here: {error}"
    note = f"{STAND_INS.get(name)} was used, since {name}, the default, {why_not}"
    return replace(e, notes=(*e.notes, note)) if why_not else e


def has_zero_rows(e: Explanation) -> bool:
    return bool((e.scores == 0).flatten(1).all(1).any())


def as_model(model: ModelLike) -> Model:
    """The model itself, or the one opened from a name, a path or a module."""
    return model if isinstance(model, Model) else open_model(model)
