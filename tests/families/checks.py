"""What is checked of one class: the defaults and ten more methods on a batch of two, and that nobody is misled.

Of each method: it explains, or it is refused with an error of our own; a map of zeros, and a method that sees the
attention of some blocks only, carry a note; an example alone gets the scores that it gets in its batch. Of the model:
its logits and its attention are what it computes itself, gradient x input is what autograd gives by hand, relevance and
what absorbed it add up to what was sent, and the model is afterwards what it was before.
"""

import copy
import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from families import support
from families.advice import check_advice
from families.cases import Case
from families.media import MEDIA, find_placeholder, takes_media_unfed
from families.outcome import Outcome, explain_case, find_answer, take_second
from families.token_checks import check_loud_token, check_order, find_table
from torch import Tensor, nn

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.relevance.recipes import RECIPES, Recipe
from whyformer._explain.conservation import find_sent_relevance
from whyformer.errors import WhyformerError
from whyformer.methods._registry import METHODS

TRIED = support.METHODS
ON_ATTENTION = ("transformer_attribution", "generic_attention", "rollout", "raw_attention", "grad_cam")
ROUNDING, BATCH_TOLERANCE, CONSERVATION_TOLERANCE = 1e-5, 2e-2, 1e-3
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check_case(case: Case) -> Outcome:
    outcome = Outcome()
    before = describe_model(case.module)
    try:
        model = why.open(case.module)
    except WhyformerError as error:
        for method in TRIED:
            outcome.note(method, "refused", describe_error(error))
        return outcome
    is_unfed = takes_media_unfed(inspect.signature(case.module.forward).parameters, case.inputs)
    outcome.note("fed", "text only" if is_unfed else "ok")
    explained = {method: try_method(outcome, model, case, method) for method in TRIED}
    check_without_target(outcome, model, case)
    run_check(outcome, "advice", lambda: check_advice(outcome, model, case))
    check_alone(outcome, model, case, explained)
    run_check(outcome, "eager", lambda: check_attention(outcome, model, case))
    run_check(outcome, "by_hand", lambda: check_by_hand(outcome, case, explained["gradient_x_input"]))
    run_check(outcome, "order", lambda: check_order(outcome, model, case, explained["leave_one_out"]))
    outcome.words["first"] = "n/a"
    run_check(outcome, "loud", lambda: check_loud_token(outcome, case, explained["leave_one_out"]))
    run_check(outcome, "conserved", lambda: check_conservation(outcome, model, case))
    run_check(outcome, "noted", lambda: check_notes(outcome, model, case, explained))
    changed = find_changes(before, describe_model(case.module))
    outcome.note("unchanged", "WRONG" if changed else "ok", ", ".join(changed))
    return outcome


def run_check(outcome: Outcome, name: str, check: Callable[[], None]) -> None:
    outcome.words[name] = "n/a"
    try:
        check()
    except WhyformerError:  # what it needs is refused, which the methods report
        pass
    except TimeoutError:
        raise
    except Exception as error:
        outcome.note(name, "FOREIGN", describe_crash(error))


def describe_error(error: WhyformerError) -> str:
    return f"{type(error).__name__}: {error}"


def describe_crash(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-4:]]
    return f"{type(error).__name__}: {str(error)[:200]} ({' > '.join(places)})"


# --- methods ---------------------------------------------------------------------------------------------------------


def try_method(outcome: Outcome, model: Any, case: Case, method: str) -> Any:
    try:
        explanation = explain_case(model, case.inputs, method, case.target)
    except WhyformerError as error:
        is_ours = error.code != "E_INTERNAL"  # a fault of whyformer that calls itself one
        outcome.note(method, "refused" if is_ours else "FOREIGN", describe_error(error))
        return None
    except TimeoutError:
        raise
    except Exception as error:
        outcome.note(method, "FOREIGN", describe_crash(error))
        return None
    scores = explanation.scores
    if not bool(scores.isfinite().all()):
        outcome.note(method, "SILENT", "The scores are not finite.")
    elif bool((scores.flatten(1).abs().sum(1) == 0).any()):
        is_noted = any("gives 0 to every" in note for note in explanation.notes)
        outcome.note(method, "zero" if is_noted else "SILENT", "" if is_noted else "All scores are 0, without a note.")
    else:
        outcome.note(method, "ok")
    return explanation


def check_without_target(outcome: Outcome, model: Any, case: Case) -> None:
    """The call that names neither a method nor a target."""
    try:
        why.explain(model, case.inputs)
        outcome.note("no_target", "ok")
    except WhyformerError as error:
        outcome.note("no_target", "refused" if error.code != "E_INTERNAL" else "FOREIGN", describe_error(error))
    except TimeoutError:
        raise
    except Exception as error:
        outcome.note("no_target", "FOREIGN", describe_crash(error))


def check_alone(outcome: Outcome, model: Any, case: Case, explained: dict[str, Any]) -> None:
    """The second example alone, without padding, against the second of the batch."""
    outcome.words["alone"] = "n/a"
    alone = take_second(case.inputs)
    with torch.no_grad():
        try:
            both, one = (find_answer(case.module, inputs) for inputs in (case.inputs, alone))
        except Exception:
            return
    if both is None or one is None or both[1].shape != one[0].shape:
        return
    largest = float(both.abs().max())
    if float((both[1] - one[0]).abs().max()) > 1e-3 * largest or has_other_gradient_alone(case, alone):
        return  # the model itself answers otherwise
    outcome.words["alone"] = "ok"
    for method, explanation in explained.items():
        if explanation is None or outcome.words[method] == "SILENT":
            continue
        try:
            again = explain_case(
                model, alone, None if method == "default" else method, take_target(case.target, explanation)
            )
        except Exception as error:
            outcome.note(method, "SILENT", f"Alone it is refused: {type(error).__name__}: {error}")
            continue
        problem = compare_scores(explanation, again, largest, case.inputs.get("attention_mask"))
        if problem and not draws_order(case):
            outcome.note(method, "SILENT", problem)


def draws_order(case: Case) -> bool:
    """Whether the model puts its tokens in another order in each run: ViLT does so with patches."""
    with torch.no_grad():
        outputs = [case.module(**case.inputs, output_attentions=True) for _ in range(2)]
    one, other = ((getattr(output, "attentions", None) or (None,))[0] for output in outputs)
    return isinstance(one, Tensor) and isinstance(other, Tensor) and not torch.allclose(one, other, atol=1e-4)


def has_other_gradient_alone(case: Case, alone: dict[str, Any]) -> bool:
    """Whether autograd itself gives an image another gradient in a batch: some kernels of convolutions do."""
    if "pixel_values" not in case.inputs or not isinstance(case.target, int):
        return False
    module, gradients = copy.deepcopy(case.module).requires_grad_(False), []
    for inputs in (case.inputs, alone):
        pixels = inputs["pixel_values"].detach().clone().requires_grad_()
        answer = find_answer(module, {**inputs, "pixel_values": pixels})
        if answer is None or answer.dim() != 2 or not answer.requires_grad:
            return False
        gradients.append(torch.autograd.grad(answer[:, case.target % answer.size(1)].sum(), pixels)[0][-1])
    batch, single = gradients
    return float((batch - single).abs().max()) > BATCH_TOLERANCE * float(single.abs().max())


def take_target(target: Any, explanation: Any) -> Any:
    if target is not None or not explanation.targets:
        return target
    index = explanation.targets[1].index
    return index if index >= 0 else None


def compare_scores(batch: Any, alone: Any, largest: float, mask: Tensor | None) -> str:
    """How the scores of the second example differ from those it has alone; empty if they do not."""
    if mask is not None and mask.shape == batch.scores.shape and not bool(mask[1, 0]):  # padding comes first
        batch = replace(batch, scores=batch.scores[:, mask[1].argsort(descending=True, stable=True)])
    if batch.pixels is not None and alone.pixels is not None:
        pairs = [(batch.pixels[1].flatten(), alone.pixels[0].flatten())]
    elif len(batch.streams) > 1:
        pairs = [(batch.scores[1, batch.streams[name]], alone.scores[0, at]) for name, at in alone.streams.items()]
    else:
        pairs = [(batch.scores[1].flatten(), alone.scores[0].flatten())]
    return next((found for a, b in pairs if (found := compare_parts(a, b, largest))), "")


def compare_parts(a: Tensor, b: Tensor, largest: float) -> str:
    """Of one stream; a may have padding at its end."""
    a, padding = a[: len(b)], a[len(b) :]
    if len(a) < len(b):
        return f"{len(a)} scores, alone {len(b)}."
    if bool(padding.any()):
        return "Padding has scores."
    difference = float((a - b).abs().max())
    if difference > ROUNDING * largest and difference > BATCH_TOLERANCE * float(b.abs().max()):
        return f"The scores differ by {difference:.1e} of {float(b.abs().max()):.1e} from those alone."
    return ""


# --- the model -------------------------------------------------------------------------------------------------------


def check_attention(outcome: Outcome, model: Any, case: Case) -> None:
    """Logits of the shadow, and attention against what the model returns itself with eager attention."""
    encoded = model.encode(case.inputs)
    try:
        capture = record(model, encoded, keep={"attention"}, target=case.target)
    except WhyformerError:
        capture = record(model, encoded, keep={"attention"})
    with torch.no_grad():
        logits = getattr(case.module(**case.inputs), "logits", None)
    if logits is not None and capture.logits.shape == logits.shape:
        off = float((capture.logits - logits).abs().max()) / (float(logits.abs().max()) + 1e-12)
        if off > 1e-4:
            outcome.note("eager", "WRONG", f"The logits of the shadow are {off:.0e} off.")
            return
    found = list(capture["attention"])
    eager = case.make_eager()
    eager.load_state_dict(case.module.state_dict())
    with torch.no_grad():
        output = eager(**case.inputs, output_attentions=True)
    names = ("attentions", "encoder_attentions")
    own = [a for name in names for a in (getattr(output, name, None) or ()) if isinstance(a, Tensor)]
    if own and draws_order(replace(case, module=eager)):
        return
    if own and all(a.shape == found[0].shape for a in own):
        compare_attention(outcome, found, own, case.inputs.get("attention_mask"))


def compare_attention(outcome: Outcome, found: list[Tensor], own: list[Tensor], mask: Any) -> None:
    """Every layer that was found is one of the model's own, in their order. Rows of padding do not count, nor do
    layers that hold scores instead of weights."""
    keep = torch.ones_like(found[0][:, :1, :, :1])
    if isinstance(mask, Tensor) and mask.shape == found[0].shape[::3]:
        keep = mask[:, None, :, None].to(found[0])
    weights = [layer for layer in own if bool((((layer.sum(-1) - 1).abs() * keep[..., 0]) < 1e-3).all())]
    if len(weights) < len(found):
        return
    rest = iter(weights)
    for number, layer in enumerate(found):
        if bool((own[0] == own[0][:, :1]).all()):  # the mean over heads, repeated
            layer = layer.mean(1, keepdim=True).expand_as(layer)
        if not any(float(((layer - other).abs() * keep).max()) < 1e-4 for other in rest):
            outcome.note("eager", "WRONG", f"Layer {number} is not what the model returns.")
            return
    outcome.note("eager", "ok")


def check_by_hand(outcome: Outcome, case: Case, explanation: Any) -> None:
    """Gradient x input of the embeddings, by autograd alone, where the target is one logit of a row.

    Beside images or sounds, of the words alone: what stands at placeholders does not come out of the table.
    """
    ids, mask = case.inputs.get("input_ids"), case.inputs.get("attention_mask")
    if explanation is None or ids is None or not isinstance(case.target, int):
        return
    module, held = copy.deepcopy(case.module).requires_grad_(False), []

    def hold(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        held.append(output.detach().clone().requires_grad_())
        return held[-1].clone()  # which the model may change in place

    table = find_table(module)
    if type(table) is not nn.Embedding:  # with a norm or a scale, say: what comes out is not what is explained
        return
    table.register_forward_hook(hold)
    answer = find_answer(module, case.inputs)
    words, scores = find_words(case, explanation)
    if answer is None or answer.dim() != 2 or len(held) != 1 or held[0].shape[:2] != ids.shape or words is None:
        return
    picked = [target.index for target in explanation.targets]
    try:
        answer[torch.arange(len(picked)), picked].sum().backward()
    except AssertionError:  # reversible layers refuse it outside of training
        return
    if held[0].grad is None:
        return
    wanted = (held[0] * held[0].grad).sum(-1)
    wanted = wanted * mask if isinstance(mask, Tensor) and mask.shape == wanted.shape else wanted
    off = float((wanted[words].view(scores.shape) - scores).abs().max() / wanted[words].abs().max())
    outcome.note("by_hand", "ok" if off < 1e-2 else "WRONG", "" if off < 1e-2 else f"Off by {off:.0e} of the largest.")


def find_words(case: Case, explanation: Any) -> tuple[Tensor | None, Tensor]:
    """[batch token]: the tokens that are words, and their scores; None if these are not told apart."""
    ids, scores = case.inputs["input_ids"], explanation.scores
    words = torch.ones_like(ids, dtype=torch.bool)
    if any(name in case.inputs for name in MEDIA):
        placeholder = find_placeholder(case.module.config, case.inputs)
        if placeholder is None or "words" not in explanation.streams:
            return None, scores
        words, scores = ids != placeholder, scores[:, explanation.streams["words"]]
    return words if int(words.sum()) == scores.numel() and len(words.sum(1).unique()) == 1 else None, scores


def check_conservation(outcome: Outcome, model: Any, case: Case) -> None:
    """What was sent is what arrived at the input and what was absorbed on the way, per example."""
    encoded = model.encode(case.inputs)
    for name in ("chefer", "attnlrp"):
        recipe = RECIPES[name]
        capture = record(
            model, encoded, keep={"input_relevance"}, target=case.target, recipes=[recipe], track_absorbed=True
        )
        off = measure_loss(capture, recipe)
        if off > CONSERVATION_TOLERANCE:
            outcome.note("conserved", "WRONG", f"{name} loses {off:.0e} of the relevance.")
            return
        outcome.words["conserved"] = "ok"


def measure_loss(capture: Any, recipe: Recipe) -> float:
    """The largest imbalance of an example, relative to the largest total on its way."""
    arrived = capture.get("input_relevance", recipe).flatten(1).double()
    sent = find_sent_relevance(capture, recipe).to(arrived)
    amounts = [one.amount.to(arrived) for one in capture.absorbed[recipe]]
    absorbed = torch.stack([torch.zeros_like(sent), *amounts])
    scale = torch.stack([sent.abs(), arrived.abs().sum(1), absorbed.abs().sum(0)]).amax(0).clamp_min(1e-12)
    return float(((sent - arrived.sum(1) - absorbed.sum(0)).abs() / scale).max())


def check_notes(outcome: Outcome, model: Any, case: Case, explained: dict[str, Any]) -> None:
    """A method that rests on attention says so where some blocks have none."""
    config = getattr(case.module, "config", None)
    depth = getattr(config, "num_hidden_layers", None) if config is not None else None
    made = [explained[method] for method in ON_ATTENTION if explained[method] is not None]
    if not isinstance(depth, int) or not made:
        return
    found = len(record(model, model.encode(case.inputs), keep={"attention"}, target=case.target)["attention"])
    if found >= depth:
        return
    silent = [e.method for e in made if not any("blocks have attention" in note for note in e.notes)]
    reason = f"{found} of {depth} layers have attention; without a note: {', '.join(silent)}."
    outcome.note("noted", "WRONG" if silent else "ok", reason if silent else "")


def describe_model(module: nn.Module) -> dict[str, Any]:
    return {
        "weights": {k: v.detach().clone() for k, v in module.state_dict().items() if isinstance(v, Tensor)},
        "hooks": sum(len(getattr(part, name)) for part in module.modules() for name in HOOKS),
        "requires_grad": [p.requires_grad for p in module.parameters()],
        "training": [part.training for part in module.modules()],
        "grad": [p.grad is None for p in module.parameters()],
        "attributes": sorted(name for part in module.modules() for name in vars(part)),
    }


def find_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    changed = [name for name in before if name != "weights" and before[name] != after[name]]
    weights = before["weights"]
    same = all(torch.equal(weights[k].nan_to_num(), after["weights"][k].nan_to_num()) for k in weights)
    return changed if same else ["weights", *changed]


assert set(TRIED) - {"default"} <= set(METHODS)
