"""Recipes: which rule each kind of operation gets, and how divisions by nearly zero are stabilised.

The papers behind the recipes are in rules.py (`chefer`, `chefer_baseline`) and in the files of methods/ (the others).
"""

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

import torch
from torch import Tensor

from whyformer._engine.relevance import rules, slopes
from whyformer._engine.relevance.calls import Rule
from whyformer._engine.tracing.recording import mark_constant
from whyformer.errors import MethodError, suggest_nearest


@cache
def make_number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor, made once: copying one to a GPU waits for all that the GPU still has to do."""
    with torch.inference_mode(False):
        return mark_constant(torch.tensor(value, dtype=dtype, device=device))


@dataclass(frozen=True)
class Stabiliser:
    """How a division by nearly zero is kept finite."""

    name: str
    describe: str
    amount: float | None = None  # epsilon, where it is a parameter of the recipe

    def epsilon(self, dtype: torch.dtype) -> float:
        """`amount` if given, else below what `dtype` can resolve beside 1, so that it acts only where z is rounding
        noise."""
        if self.amount is not None:
            return self.amount
        return {"signed": torch.finfo(dtype).eps / 100, "released": 1e-9, "none": 0.0}[self.name]

    def divide(self, relevance: Tensor, z: Tensor) -> Tensor:
        epsilon = self.epsilon(z.dtype)
        if self.name == "signed":
            away = torch.copysign(make_number(epsilon, z.dtype, z.device), z).add_(z)
            return torch.div(relevance, away, out=away)
        stable = z + epsilon
        return torch.where(z == 0, 0, relevance / torch.where(stable == 0, epsilon or 1, stable))

    def divide_by_positive(self, relevance: Tensor, z: Tensor) -> Tensor:
        """The same where z is known not to be negative."""
        return relevance / (z + self.epsilon(z.dtype)) if self.name == "signed" else self.divide(relevance, z)


STABILISERS = {
    "signed": Stabiliser("signed", "z moved away from zero: z + eps sign(z), where zero counts by its sign bit"),
    "released": Stabiliser("released", "z + 1e-9 whatever the sign of z; zero where z = 0 (the authors' code)"),
    "none": Stabiliser("none", "z itself; zero where z = 0"),
}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A set of relevance rules: kind of operation -> rule.

    sends: what rules receive and return, relevance R or the slope R / x.
    Recipes are equal if name, rules, stabiliser and parameters are.
    """

    name: str
    rules: Mapping[str, Rule] = field(repr=False)
    describe: str = field(repr=False, default="")
    stabiliser: Stabiliser = STABILISERS["signed"]
    parameters: Mapping[str, float] = field(default_factory=dict)
    sends: Literal["relevance", "slope"] = "relevance"
    attention_part: float = 0.5  # the part of the relevance of attention @ values that goes to the attention

    def replace(
        self, name: str, *, describe: str = "", parameters: Mapping[str, float] | None = None, **rules: Rule
    ) -> "Recipe":
        """A new recipe with other rules for some kinds of operations: `RECIPES["chefer"].replace("mine", add=my_rule)`.

        parameters: numbers that your rules read from `call.parameters`; they become settings of the method.
        """
        if name == self.name:
            raise MethodError(f"Choose another name; {name!r} is the recipe that this one is based on.")
        for kind, rule in rules.items():
            if kind not in self.rules:
                hint = suggest_nearest(kind, self.rules)
                raise MethodError(f"No kind of operation {kind!r}.{hint} Available: {', '.join(self.rules)}.")
            refuse_rule_of_other_kind(self, kind, rule)
        return dataclasses.replace(
            self,
            name=name,
            rules={**self.rules, **rules},
            describe=describe,
            parameters={**self.parameters, **(parameters or {})},
        )

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        return self.name, frozenset(self.rules.items()), self.stabiliser, frozenset(self.parameters.items())

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.identity == other.identity


def refuse_rule_of_other_kind(recipe: Recipe, kind: str, rule: Rule) -> None:
    """A rule that passes slopes on gives wrong numbers in a recipe that sends relevance, and the other way round."""
    sends = {other.sends for other in RECIPES.values() if rule in other.rules.values()}
    if sends and recipe.sends not in sends:
        raise MethodError(
            f"The rule {rule.__name__} for {kind!r} belongs to recipes that send {' or '.join(sorted(sends))}; "
            f"{recipe.name} sends {recipe.sends}. Use a rule of a recipe that sends {recipe.sends}."
        )


DEFAULT_EPSILON = 0.1  # for activations of size 1; with less, sums that cancel drown the rest

# --- the recipes -----------------------------------------------------------------------------------------------------

CHEFER = Recipe(
    "chefer",
    {
        "linear": rules.share_positive_products,
        "pixels": rules.share_pixel_box,
        "product": rules.share_product_halves,
        "add": rules.share_normalised_addition,
        "pool": rules.share_pooled,
        "attention": rules.share_attention,
        "scale": rules.pass_scaled,
        "bias": rules.pass_unchanged,
        "mask": rules.pass_unmasked,
        "normalise": rules.pass_unchanged,
        "select": rules.pass_selected,
        "join": rules.pass_joined,
        "norm": rules.pass_unchanged,
        "softmax": rules.pass_unchanged,
        "activation": rules.pass_unchanged,
    },
    "The rule set of Chefer et al. 2021: conservative, positive products only.",
)

CHEFER_BASELINE = Recipe(
    "chefer_baseline",
    {**CHEFER.rules, "linear": rules.share_doubled_products, "add": rules.share_plain_addition},
    "What their released code runs as the LRP baseline: linear layers double the total, additions are not normalised.",
)

EPSILON = Recipe(
    "epsilon",
    {
        **CHEFER.rules,
        "linear": rules.share_epsilon_products,
        "pixels": rules.share_epsilon_products,
        "add": rules.share_plain_addition,
        "bias": rules.share_plain_addition,
    },
    "LRP-epsilon: every sum shares in proportion, biases included; relevance passes softmax, norms and activations "
    "unchanged.",
    stabiliser=dataclasses.replace(STABILISERS["signed"], amount=DEFAULT_EPSILON),
    parameters={"epsilon": DEFAULT_EPSILON},
)

ATTNLRP = Recipe(
    "attnlrp",
    {
        "linear": slopes.pass_linear_slope,
        "pixels": slopes.pass_linear_slope,
        "product": slopes.halve_product,
        "add": slopes.pass_addition_slope,
        "pool": slopes.pass_gradient,
        "attention": rules.share_attention,
        "scale": slopes.pass_gradient,
        "bias": slopes.pass_bias_slope,
        "mask": slopes.pass_mask_slope,
        "normalise": slopes.hold_statistic,
        "select": slopes.pass_gradient,
        "join": slopes.pass_joined_slope,
        "norm": slopes.hold_norm_spread,
        "softmax": slopes.expand_softmax,
        "activation": slopes.pass_secant,
    },
    "AttnLRP, Achtibat et al. 2024: products halved, softmax by its expansion, spreads of norms held constant, "
    "activations by secants.",
    sends="slope",
)

GAMMA = Recipe(
    "gamma",
    {**ATTNLRP.rules, "linear": slopes.favour_agreeing_products, "pixels": slopes.favour_agreeing_products},
    "AttnLRP with LRP-gamma in linear layers: products that agree in sign with the output count 1 + gamma times.",
    parameters={"gamma": 0.25},
    sends="slope",
)

CP_LRP = Recipe(
    "cp_lrp",
    {**ATTNLRP.rules, "product": slopes.hold_gates, "softmax": slopes.hold_constant, "activation": slopes.pass_tangent},
    "CP-LRP, Ali et al. 2022: attention, gates and the spreads of norms held constant; activations by their gradient.",
    sends="slope",
    attention_part=0,
)

LIBRA = Recipe(
    "libra",
    {**ATTNLRP.rules, "product": slopes.hold_attention, "softmax": slopes.hold_constant},
    "LibraGrad, Mehri et al. 2025: attention and the spreads of norms held constant, activations by secants, gated "
    "products halved.",
    sends="slope",
    attention_part=0,
)

PA_LRP = Recipe(
    "pa_lrp",
    {**ATTNLRP.rules, "scale": slopes.share_rotation},
    "PA-LRP, Bakish et al. 2025: AttnLRP in which rotary positions take half of what they multiply.",
    sends="slope",
)

# Recipes by name. Add your own, RECIPES["mine"] = recipe, to use it by name.
RECIPES = {one.name: one for one in (CHEFER, CHEFER_BASELINE, EPSILON, GAMMA, ATTNLRP, CP_LRP, LIBRA, PA_LRP)}
ALIASES = {"baseline": "chefer_baseline"}

# --- choosing one ----------------------------------------------------------------------------------------------------


def find_recipe(recipe: str | Recipe) -> Recipe:
    """The recipe of that name; a recipe is returned as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise MethodError(
            f"recipe must be a name or a Recipe, got {recipe!r}. Available: {', '.join(RECIPES)}.", code="E_OPTION"
        )
    name = ALIASES.get(recipe, recipe)
    if name not in RECIPES:
        raise MethodError(
            f"No recipe {name!r}.{suggest_nearest(name, RECIPES)} Available: {', '.join(RECIPES)}.", code="E_OPTION"
        )
    return RECIPES[name]


def make_recipe(name: str | Recipe, stabiliser: str | None = None, **parameters: float) -> Recipe:
    """The recipe of that name (or a recipe itself), with another stabiliser or other parameters."""
    chosen = find_recipe(name)
    if stabiliser is not None and not (isinstance(stabiliser, str) and stabiliser in STABILISERS):
        hint = suggest_nearest(stabiliser, STABILISERS) if isinstance(stabiliser, str) else ""
        raise MethodError(f"No stabiliser {stabiliser!r}.{hint} Available: {', '.join(STABILISERS)}.", code="E_OPTION")
    numbers = {key: check_recipe_parameter(chosen, key, value) for key, value in parameters.items()}
    numbers = {**chosen.parameters, **numbers}
    divide = chosen.stabiliser if stabiliser is None else STABILISERS[stabiliser]
    if divide.name == "signed":
        divide = dataclasses.replace(divide, amount=numbers.get("epsilon", divide.amount))
    return dataclasses.replace(chosen, stabiliser=divide, parameters=numbers)


def check_recipe_parameter(recipe: Recipe, key: str, value: float) -> float:
    """The value as a float, if the recipe has such a parameter and the value is a finite number >= 0."""
    if key not in recipe.parameters:
        known = f"It has: {', '.join(recipe.parameters)}." if recipe.parameters else "It has none."
        raise MethodError(
            f"The recipe {recipe.name} has no parameter {key!r}.{suggest_nearest(key, recipe.parameters)} {known}",
            code="E_OPTION",
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise MethodError(f"{key} must be a finite number >= 0, got {value!r}.", code="E_OPTION")
    return float(value)


def compute_attention_share(weights: Tensor, value: Tensor, output: Tensor, arriving: Tensor, recipe: Recipe) -> Tensor:
    r"""What the product of attention and values gives to the attention: a part of $A \odot (\tfrac{R}{O} V^\top)$, half
    in most recipes. In a recipe that sends slopes, what arrives is $R/O$ already."""
    if recipe.attention_part == 0:
        raise MethodError(
            f"The recipe {recipe.name} holds attention constant, so attention gets no relevance. "
            f"Use one of: {', '.join(name for name, one in RECIPES.items() if one.attention_part)}."
        )
    slope = arriving if recipe.sends == "slope" else recipe.stabiliser.divide(arriving, output)
    return (slope @ value.mT).mul_(weights).mul_(recipe.attention_part)
