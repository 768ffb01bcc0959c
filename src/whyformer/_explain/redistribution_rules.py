"""Compare the rules of redistribution: one input explained by every head under every rule.

    compare_redistribution(open("facebook/dino-vits16"), "cat.jpg").save("rules.png")

The figure of Sawaki & Murata, Redistribution of Token-wise Relevance in Transformer Models, JSAI 2025 (4I1-GS-11-03):
they show the six heads of DINO's ViT-S/16. Any model whose heads can be followed through all layers will do; it needs
no classes. The methods share one run of the model.
"""

from collections.abc import Sequence
from functools import partial

from whyformer._explain.compare import compare
from whyformer._explain.explain import ModelLike, as_model, explain
from whyformer._model import InputLike
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, MethodError
from whyformer.methods.redistribution import RULES, redistribution
from whyformer.results.rule_grid import RuleGrid


@neutral_torch()
def compare_redistribution(model: ModelLike, inputs: InputLike, rules: Sequence[str] = RULES) -> RuleGrid:
    """The maps of every head and of their mean under each rule: one row per rule, one column per head.

    rules: some of "i", "ii", "iii" and "iv"; see the method `redistribution`.
    """
    if isinstance(rules, str) or not rules or any(rule not in RULES for rule in rules):
        raise MethodError(f"rules must be some of {', '.join(RULES)}, got {rules!r}.", code="E_OPTION")
    model = as_model(model)
    encoded = model.encode(inputs)
    if encoded.batch != 1:
        raise InputError(f"compare_redistribution() takes one input, got {encoded.batch}.")
    heads = explain(model, encoded, redistribution, rule=rules[0]).details["per_head"].shape[1]
    calls = [partial(redistribution, rule=rule, heads=[head]) for rule in rules for head in range(heads)]
    maps = list(compare(model, encoded, [*calls, *(partial(redistribution, rule=rule) for rule in rules)]))
    by_head = {rule: tuple(maps[index * heads : (index + 1) * heads]) for index, rule in enumerate(rules)}
    return RuleGrid(by_head, dict(zip(rules, maps[len(calls) :], strict=True)))
