"""record(): the one place that runs a model. One forward, the gradient backward and the relevance backward only if needed.

What comes out is a `Capture`: frozen, detached from the graph, and lazy where it would be large: per-layer sites are sequences
that rebuild one layer's matrices when that layer is asked for,

    attention            softmax(q k^T), or what the model computed
    attention_grad       dO V^T
    attention_relevance  A * ((R_O / O) V^T) / 2

from q, k, v, O, dO and R_O, which are linear in the number of tokens.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whyformer import labels
from whyformer.attention import Site
from whyformer.blocks import find_blocks
from whyformer.errors import NoAttention, NonFinite, NotCaptured, UnsupportedModel
from whyformer.graph import refuse_strangers
from whyformer.intercept import Intercept
from whyformer.labels import Trace, put, trace_of
from whyformer.model import Encoded, Model
from whyformer.node import Recipe, Switch
from whyformer.rules import value_relevance_of_attention
from whyformer.shadow import shadow, unwrap, weights_of
from whyformer.sites import SITES
from whyformer.target import Target, choose
from whyformer.tokens import Grid, Tokens


class Layers(Sequence[Tensor]):
    """One tensor a layer, made when it is asked for."""

    def __init__(self, makers: Sequence[Callable[[], Tensor]]) -> None:
        self._makers = tuple(makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return Layers(self._makers[layer])
        return self._makers[layer]()

    def __iter__(self) -> Iterator[Tensor]:
        return (make() for make in self._makers)

    def stack(self) -> Tensor:
        return torch.stack(list(self))


@dataclass(frozen=True)
class Capture:
    """What one run of the model left behind."""

    targets: tuple[Target, ...]
    tokens: tuple[Tokens, ...]
    patches: tuple[int, ...] | None  # images: where the patches are in the token sequence, row by row
    notes: tuple[str, ...]
    logits: Tensor
    absorbed: Mapping[Recipe, Mapping[str, Any]] = field(repr=False)
    _held: Mapping[tuple[str, Recipe | None], Any] = field(repr=False)

    def get(self, site: str, recipe: Recipe | None = None) -> Any:
        """A site, by its name in SITES; those that end in `_relevance` belong to a recipe."""
        key = (site, recipe if site.endswith("_relevance") else None)
        if key not in self._held:
            there = ", ".join(sorted({name for name, _ in self._held}))
            asked = f"{site} under the recipe {recipe.name}" if recipe and site.endswith("_relevance") else site
            raise NotCaptured(f"This capture holds {there} but not {asked}; record it with keep={{..., {site!r}}}.")
        return self._held[key]

    def __getitem__(self, site: str) -> Any:
        return self.get(site)


@dataclass
class Run:
    """A forward that has been made, with its graph; lives only inside record()."""

    mode: Intercept
    output: Tensor
    batch: int


def record(
    model: Model,
    encoded: Encoded,
    *,
    target: Any = None,
    versus: Any = None,
    keep: Collection[str],
    recipes: Sequence[Recipe] = (),
    books: bool = False,
) -> Capture:
    """Run the model once and keep what is asked for.

    `books=True` also keeps, per recipe, where relevance went that reached no input (`Capture.absorbed`).
    """
    if strange := set(keep) - set(SITES):
        raise NotCaptured(f"There is no site {', '.join(sorted(strange))}. There are: {', '.join(SITES)}.")
    asks_relevance = any(name.endswith("_relevance") for name in keep) and bool(recipes)
    asks_gradient = any(name.endswith("_grad") for name in keep)
    switch = Switch() if asks_relevance else None
    run = forward(model, encoded, switch=switch, asks_gradient=asks_gradient)
    try:
        return _harvest(model, encoded, run, switch, set(keep), recipes, target, versus, books)
    finally:
        run.mode.forget()


# --- forward ---------------------------------------------------------------------------------------------------------


def forward(model: Model, encoded: Encoded, *, switch: Switch | None, asks_gradient: bool) -> Run:
    """One forward of the shadow, under interception."""
    dtype = _relevance_dtype(model) if switch is not None else None
    twin = shadow(model.module, dtype)
    mode = Intercept(
        batch=encoded.batch, originals=weights_of(unwrap(model.module)), switch=switch, needs_gradient=asks_gradient
    )
    inputs = _enter(encoded, mode, dtype, model)
    _watch_modules(twin, mode)
    with torch.set_grad_enabled(mode.needs_gradient), mode:
        answer = twin(**inputs)
    output = _output_of(answer)
    if not mode.sites:
        raise NoAttention(
            f"{type(unwrap(model.module)).__name__} ran without reaching attention: no softmax multiplied values and no fused attention "
            "was called. whyformer explains transformers."
        )
    if not bool(output.isfinite().all()):
        raise NonFinite(f"The model's answer is not finite. {_first_non_finite(model, encoded)}")
    return Run(mode, output, encoded.batch)


def _relevance_dtype(model: Model) -> torch.dtype | None:
    """Relevance needs float32 at least; 16-bit weights are copied up."""
    is_short = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in model.module.parameters())
    return torch.float32 if is_short else None


def _enter(encoded: Encoded, mode: Intercept, dtype: torch.dtype | None, model: Model) -> dict[str, Tensor]:
    """The inputs, labelled; floating-point input that is to be explained becomes the leaf."""
    entered: dict[str, Tensor] = {}
    for name, tensor in encoded.inputs.items():
        given = tensor.detach()
        if given.is_floating_point() and dtype is not None:
            given = given.to(dtype)
        axis = encoded.batch_axis if given.dim() > encoded.batch_axis else 0
        if given.dim() == 0 or given.size(axis) != encoded.batch:
            entered[name] = given
            continue
        samples = labels.along(axis, encoded.batch, given.dim(), given.device)
        token_axis = 1 - axis if given.dim() in (2, 3) else None
        tokens = (
            labels.along(token_axis, given.size(token_axis), given.dim(), given.device)
            if token_axis is not None
            else None
        )
        trace = Trace(samples=samples, tokens=tokens, is_pixels=given.dim() == 4)
        if name == encoded.main and given.is_floating_point() and mode.needs_gradient:
            mode.leaf = put(given.clone().requires_grad_(), trace)
            entered[name] = put(mode.leaf.clone(), trace)
        else:
            entered[name] = put(given.view_as(given), trace)
    return entered


def _watch_modules(twin: nn.Module, mode: Intercept) -> None:
    """Hooks on the twin tell the mode where it is, and what passes every module."""
    for path, module in twin.named_modules():

        def before(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            given = [*args, *kwargs.values()]
            mode.enter(path, next((a for a in given if isinstance(a, Tensor) and a.is_floating_point()), None))

        def after(_: nn.Module, __: Any, result: Any) -> None:
            mode.leave(first_tensor(result))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)


def first_tensor(result: Any) -> Tensor | None:
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return next((found for item in result if (found := first_tensor(item)) is not None), None)
    return None


def _output_of(answer: Any) -> Tensor:
    """The logits, however the model packs them."""
    logits = getattr(answer, "logits", None)
    if logits is None and isinstance(answer, Mapping):
        logits = answer.get("logits")
    found = logits if isinstance(logits, Tensor) else first_tensor(answer)
    if found is None:
        raise UnsupportedModel(f"The model returned {type(answer).__name__}, in which there is no tensor to explain.")
    return found


def _first_non_finite(model: Model, encoded: Encoded) -> str:
    """Run again and say which module first answered NaN or infinity."""
    twin = shadow(model.module)
    found: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def after(module: nn.Module, _: Any, result: Any) -> None:
            tensor = first_tensor(result)
            if not found and tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                found.append(f"The first non-finite value comes from {path or 'the model'} ({type(module).__name__}).")

        return after

    for path, module in twin.named_modules():
        module.register_forward_hook(look(path))
    with torch.no_grad():
        twin(**encoded.inputs)
    return found[0] if found else ""


# --- what is kept ----------------------------------------------------------------------------------------------------


def _harvest(
    model: Model,
    encoded: Encoded,
    run: Run,
    switch: Switch | None,
    keep: set[str],
    recipes: Sequence[Recipe],
    target: Any,
    versus: Any,
    books: bool,
) -> Capture:
    mode = run.mode
    score, targets, answer_trace, answer_shape = choose(model, encoded, run.output, target, versus)
    held: dict[tuple[str, Recipe | None], Any] = {}
    sites = mode.sites
    length = sites[-1].output.size(-2)
    site_mask, special, origin, patches = _lay_out(encoded, mode, sites[0], length)
    if "readout" in keep:
        held["readout", None] = _readout(model, run, answer_trace, answer_shape, site_mask, length)
    held["mask", None], held["special", None] = site_mask, special
    held["fingerprint", None] = encoded.fingerprints()
    if any(name.split("_")[0] in ("attention", "value", "query", "key") for name in keep):
        _check_sites(sites, run.batch, length)
    tracked = _tracked(mode, keep)
    _keep_values(held, keep, sites, tracked, encoded)
    passes: dict[Recipe | None, dict[str, list[Tensor]]] = {}
    if any(name.endswith("_grad") for name in keep):
        passes[None] = _backward(score, tracked, None, is_last=switch is None)
    absorbed: dict[Recipe, Mapping[str, Any]] = {}
    for recipe in recipes if switch is not None else ():
        assert switch is not None
        refuse_strangers(score, mode.place)
        passes[recipe], absorbed[recipe] = _relevance(
            score, tracked, switch, recipe, books, is_last=recipe == recipes[-1]
        )
    for recipe, found in passes.items():
        _keep_backward(held, keep, sites, found, recipe, encoded)
    tokens = _tokens(encoded, mode, patches, run.batch, length)
    return Capture(targets, tokens, patches, tuple(encoded.notes), run.output.detach(), absorbed, held)


def _tracked(mode: Intercept, keep: set[str]) -> dict[str, list[Tensor]]:
    """The tensors of the graph whose gradient or relevance is wanted, by site."""
    tracked: dict[str, list[Tensor]] = {}
    wanted = {name.removesuffix("_grad").removesuffix("_relevance") for name in keep}
    if wanted & {"attention", "attention_output"}:
        tracked["attention_output"] = [site.output for site in mode.sites]
    if "hidden" in wanted:
        tracked["hidden"] = find_blocks(mode)
    if "input" in wanted and mode.leaf is not None:
        tracked["input"] = [mode.leaf]
    return tracked


def _backward(
    score: Tensor, tracked: Mapping[str, list[Tensor]], switch: Switch | None, *, is_last: bool
) -> dict[str, list[Tensor]]:
    flat = [tensor for group in tracked.values() for tensor in group]
    found = torch.autograd.grad(score.sum(), flat, retain_graph=not is_last, allow_unused=True)
    filled = iter([put(torch.zeros_like(t) if g is None else g, trace_of(t)) for t, g in zip(flat, found, strict=True)])
    return {name: [next(filled) for _ in group] for name, group in tracked.items()}


def _relevance(
    score: Tensor, tracked: Mapping[str, list[Tensor]], switch: Switch, recipe: Recipe, books: bool, *, is_last: bool
) -> tuple[dict[str, list[Tensor]], Mapping[str, Any]]:
    switch.recipe, switch.absorbed = recipe, {} if books else None
    try:
        found = _backward(score, tracked, switch, is_last=False)
        if not all(bool(t.isfinite().all()) for group in found.values() for t in group):
            switch.is_strict = True
            _backward(score, tracked, switch, is_last=False)
        return found, dict(switch.absorbed or {})  # type: ignore[arg-type]
    finally:
        switch.recipe, switch.absorbed, switch.is_strict = None, None, False


def _keep_values(
    held: dict[tuple[str, Recipe | None], Any],
    keep: set[str],
    sites: list[Site],
    tracked: Mapping[str, list[Tensor]],
    encoded: Encoded,
) -> None:
    makers: dict[str, Callable[[Site], Tensor]] = {
        "attention": Site.attention,
        "value": lambda site: site.value,
        "attention_output": lambda site: site.heads_apart(site.output.detach()),
        "query": _queries("query"),
        "key": _queries("key"),
    }
    for name in keep & makers.keys():
        held[name, None] = Layers([_bind(makers[name], site) for site in map(_detached, sites)])
    if "hidden" in keep:
        held["hidden", None] = [as_places(t.detach(), trace_of(t)) for t in tracked["hidden"]]
    if "input" in keep and "input" in tracked:
        held["input", None] = as_places(tracked["input"][0].detach(), trace_of(tracked["input"][0]))
    if "input" in keep and "input" not in tracked:
        raise UnsupportedModel(
            "The explained input was not found: no floating-point input and no embedding of token ids."
        )


def _keep_backward(
    held: dict[tuple[str, Recipe | None], Any],
    keep: set[str],
    sites: list[Site],
    found: Mapping[str, list[Tensor]],
    recipe: Recipe | None,
    encoded: Encoded,
) -> None:
    suffix = "_grad" if recipe is None else "_relevance"
    outputs = [s.heads_apart(t) for t, s in zip(found.get("attention_output", ()), sites, strict=False)]
    detached = [_detached(site) for site in sites]
    if f"attention{suffix}" in keep:
        make = _attention_grad if recipe is None else _attention_relevance(recipe)
        held[f"attention{suffix}", recipe] = Layers([_bind(make, s, t) for s, t in zip(detached, outputs, strict=True)])
    if f"attention_output{suffix}" in keep:
        held[f"attention_output{suffix}", recipe] = outputs
    if f"hidden{suffix}" in keep:
        held[f"hidden{suffix}", recipe] = [as_places(t, trace_of(t)) for t in found["hidden"]]
    if f"input{suffix}" in keep:
        if "input" not in found:
            raise UnsupportedModel(
                "The explained input was not found: no floating-point input and no embedding of token ids."
            )
        held[f"input{suffix}", recipe] = as_places(found["input"][0], trace_of(found["input"][0]))


def _attention_grad(site: Site, output_grad: Tensor) -> Tensor:
    return output_grad @ site.value.transpose(-1, -2)


def _attention_relevance(recipe: Recipe) -> Callable[[Site, Tensor], Tensor]:
    def make(site: Site, relevance: Tensor) -> Tensor:
        return value_relevance_of_attention(site.attention(), site.value, site.output, relevance, recipe.stabiliser)

    return make


def _bind(make: Callable[..., Tensor], *values: Any) -> Callable[[], Tensor]:
    return lambda: make(*values)


def _detached(site: Site) -> Site:
    return Site(
        site.place,
        site.value,
        site.heads_apart(site.output.detach()),
        site.weights,
        site.query,
        site.key,
        site.mask,
        site.scale,
    )


def _queries(which: str) -> Callable[[Site], Tensor]:
    def make(site: Site) -> Tensor:
        found = getattr(site, which)
        if found is None:
            raise UnsupportedModel(f"{site.place} computes its attention in pieces; its {which} was not seen.")
        return found

    return make


def _check_sites(sites: list[Site], batch: int, length: int) -> None:
    for site in sites:
        shape = (site.value.size(0), site.output.size(-2), site.value.size(-2))
        if shape != (batch, length, length):
            raise UnsupportedModel(
                f"Attention in {site.place} covers {shape[1]} x {shape[2]} tokens in a batch of {shape[0]}, the last one {length} x {length} in a "
                f"batch of {batch}: windows, cross-attention and changing lengths are not supported by methods that need attention."
            )


# --- tokens and readout ----------------------------------------------------------------------------------------------


def _lay_out(
    encoded: Encoded, mode: Intercept, first: Site, length: int
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...] | None]:
    """For the token sequence of the sites: what is real, what is special, where it comes from, where patches are."""
    device = first.value.device
    origin = first.origin
    mask = torch.ones(encoded.batch, length, dtype=torch.bool, device=device)
    special = torch.zeros_like(mask)
    if origin is None or origin.size(-1) != length:
        count = encoded.token_mask.size(1) if encoded.token_mask is not None else length
        origin = None if count != length and mode.follower.grid is None else _guess_origin(mode, length, device)
    if origin is not None:
        line = origin[0].long()
        special |= (line < 0)[None]
        if encoded.token_mask is not None and encoded.token_mask.size(1) > int(line.max()):
            at = line.clamp(min=0)
            mask &= encoded.token_mask.to(device)[:, at] | (line < 0)
            special |= (
                encoded.special_mask.to(device)[:, at] & (line >= 0) if encoded.special_mask is not None else False
            )
    patches = None
    if mode.follower.grid is not None and origin is not None:
        line = origin[0].long()
        patches = tuple(
            int(i) for i in torch.argsort(torch.where(line < 0, length, line), stable=True)[: int((line >= 0).sum())]
        )
        if len(patches) != mode.follower.grid[0] * mode.follower.grid[1]:
            patches = None
    return mask, special, origin, patches


def _guess_origin(mode: Intercept, length: int, device: torch.device) -> Tensor:
    """Patches come last; without a grid every token is an input token."""
    count = mode.follower.grid[0] * mode.follower.grid[1] if mode.follower.grid is not None else length
    if count > length:
        return torch.arange(length, device=device)[None]
    return torch.arange(length, device=device)[None] - (length - count)


def _readout(model: Model, run: Run, trace: Trace, shape: torch.Size, mask: Tensor, length: int) -> Tensor:
    """How much of the answer is read at each token, from the model's own pooling."""
    dtype = run.mode.sites[-1].value.dtype
    weights = (
        model.readout_weights(mask)
        if model.readout is not None
        else labels.weights_read(trace, shape, run.batch, length)
    )
    if weights is None or weights.shape != mask.shape:
        raise UnsupportedModel(
            "It could not be seen at which tokens the answer is read. Say so when opening the model: "
            'readout="first", "last", "mean" or the index of a token.'
        )
    weights = weights.to(dtype) * mask
    return weights / weights.sum(-1, keepdim=True)


def _tokens(
    encoded: Encoded, mode: Intercept, patches: tuple[int, ...] | None, batch: int, length: int
) -> tuple[Tokens, ...]:
    if patches is not None and mode.follower.grid is not None:
        return (Grid(*mode.follower.grid),) * batch
    return encoded.pieces(length)


def as_places(tensor: Tensor, trace: Trace) -> Tensor:
    """[batch token channel] or [batch height width channel], whatever the model's order of axes."""
    if trace.is_pixels:
        return tensor.permute(0, 2, 3, 1)
    batch_axis = _axis_of(trace.samples)
    token_axis = _axis_of(trace.tokens)
    is_turned = batch_axis == 1 or (batch_axis is None and token_axis == 0)
    return tensor.transpose(0, 1) if is_turned else tensor


def _axis_of(label: Tensor | None) -> int | None:
    """The one axis along which a label changes; None if there is none."""
    changing = [axis for axis in range(label.dim()) if label.size(axis) > 1] if label is not None else []
    return changing[0] if len(changing) == 1 else None
