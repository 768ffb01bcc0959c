"""Bounds on what a chat template writes and does: it comes with a model, and one line fills the memory or never ends.

    {{ messages[0].content * 10**8 }}
    {% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %} ...

A chat is rendered here once before it counts: every operation that makes a value larger is checked before it is done,
what is written is counted, and so are the steps: rounds of loops, calls, and what these go through. No value is larger
than chat_sizes.py allows, so that comparing or writing one costs little. Other errors of the template are left to the
rendering that counts, which reports them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial, reduce, wraps
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from whyformer._model.preprocessors import ChatMessage, Tokenizer
from whyformer._model.prompt.chat_sizes import MOST_HELD, estimate_result, measure_size
from whyformer._model.text import MAX_CHARACTERS
from whyformer.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.runtime import Context
    from jinja2.sandbox import SandboxedEnvironment

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_NUMBER = 256  # bits of a product or a power
MOST_MADE = 20_000_000  # characters of one call, as estimated beforehand; what it made is measured too
MOST_STEPS = 1_000_000
# Functions that do not look into the items that they are given.
SHALLOW = {
    "len", "do_default", "do_first", "do_items", "do_last", "do_list", "do_map", "do_reject", "do_rejectattr",
    "do_reverse", "do_select", "do_selectattr",
}  # fmt: skip
CALL_STEPS = 10
PER_STEP = 30  # characters or items that a call goes through
COUNTED, MEASURED = "counted", "measured"  # names for filters
STEPS: ContextVar[list[int]] = ContextVar("STEPS")  # how many the rendering that is going on has taken


class OverlongChatError(Exception):
    """A template writes, or would compute, more than a prompt may have."""


class EndlessChatError(Exception):
    """A template takes more steps than any that writes a prompt."""


def refuse_overlong_chat(
    model_name: str, tokenizer: Tokenizer, messages: Sequence[ChatMessage], **variables: Any
) -> None:
    """Refuse messages of which the template of the tokenizer makes more characters than a prompt may have."""
    before = STEPS.set([0])
    try:
        source = tokenizer.get_chat_template(None, variables.get("tools"))
        written = 0
        given = {**tokenizer.special_tokens_map, **variables, "messages": messages}
        for part in compile_bounded(source).generate(**given):
            written = check_length(written + len(part))
    except OverlongChatError:
        raise InputError(
            f"The chat template of {model_name} makes more than {MAX_CHARACTERS:,} characters of these messages, the "
            "limit for a prompt. Pass fewer or shorter messages, or set tokenizer.chat_template to one that does not "
            "multiply them.",
            code="E_TXT_TOO_LONG",
        ) from None
    except EndlessChatError:
        raise InputError(
            f"The chat template of {model_name} takes more than {MOST_STEPS:,} steps for these messages, so it was "
            "stopped. Pass fewer or shorter messages, or set tokenizer.chat_template to one that ends.",
            code="E_TXT_TOO_LONG",
        ) from None
    except Exception:  # whatever it is, the rendering that counts will meet it too
        return
    finally:
        STEPS.reset(before)


@lru_cache(maxsize=16)
def compile_bounded(source: str) -> "Template":
    """The template as transformers compiles it, with checks around what makes texts longer."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer
    from transformers.utils import chat_template_utils

    class AddsChecks(NodeTransformer):
        """Writes a ~ b as a + b of texts, as only operators are checked; counts rounds, measures what is made."""

        def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802, the name that jinja2 looks for
            self.generic_visit(node)
            node.iter = nodes.Filter(node.iter, COUNTED, [], [], None, None, lineno=node.lineno)
            return node

        def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802, the name that jinja2 looks for
            self.generic_visit(node)
            node.expr = nodes.Filter(node.expr, MEASURED, [], [], None, None, lineno=node.lineno)
            return node

        def visit_literal(self, node: nodes.Literal) -> nodes.Expr:
            self.generic_visit(node)
            is_made = getattr(node, "ctx", "load") == "load"
            return nodes.Filter(node, MEASURED, [], [], None, None, lineno=node.lineno) if is_made else node

        visit_List = visit_Tuple = visit_Dict = visit_literal  # noqa: N815, the names that jinja2 looks for

        def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802, the name that jinja2 looks for
            self.generic_visit(node)
            texts: list[nodes.Expr] = [
                nodes.Filter(one, "string", [], [], None, None, lineno=node.lineno) for one in node.nodes
            ]
            return reduce(lambda left, right: nodes.Add(left, right, lineno=node.lineno), texts)

    environment = chat_template_utils._compile_jinja_template("").environment.overlay(finalize=check_size)
    environment.intercepted_binops = frozenset({"*", "**", "+", "%"})
    environment.call_binop = partial(call_bounded_operator, environment)
    environment.filters = {name: check_call(one) for name, one in environment.filters.items()}
    environment.filters |= {COUNTED: count_rounds, MEASURED: check_size}
    environment.tests = {name: compare_measured(one) for name, one in environment.tests.items()}
    environment.call = check_call(environment.call)
    tree = AddsChecks().visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.from_string(tree)


def call_bounded_operator(
    environment: "SandboxedEnvironment", context: "Context", operator: str, left: Any, right: Any
) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * right}.get(operator, 0)
        check_length(bits, LARGEST_NUMBER)
    elif operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(other, int):
                check_length(measure_size(one)[0] * other, MOST_HELD)
                check_length(len(one) * other if hasattr(one, "__len__") else 0)
    elif operator == "%":
        check_length(estimate_result("format", [left, *(right if isinstance(right, tuple) else [right])]), MOST_MADE)
    elif hasattr(left, "__len__") and hasattr(right, "__len__"):
        take_steps(check_length(len(left) + len(right)) // PER_STEP)
    return check_size(environment.binop_table[operator](left, right))


def check_call(called: Callable[P, R]) -> Callable[P, R]:
    """The same function, if it does not make far too much; what it is given and what it makes count as steps."""

    @wraps(called)
    def call(*given: P.args, **named: P.kwargs) -> R:
        name, values = find_values(called, given)
        values += named.values()
        look = leave if name in SHALLOW else check_size
        for one in map(look, values):
            if isinstance(one, int):
                check_length(one)
        check_length(estimate_result(name, values), MOST_MADE)
        found = look(called(*map(bound_items, given), **named))  # type: ignore[arg-type]
        if isinstance(found, str):
            check_length(len(found))
        take_steps(CALL_STEPS + sum(len(one) for one in (*values, found) if hasattr(one, "__len__")) // PER_STEP)
        return found

    return call


def compare_measured(test: Callable[P, R]) -> Callable[P, R]:
    """A test of two values, such as `is eq`; one of a single value looks at it alone."""

    @wraps(test)
    def compare(*given: P.args, **named: P.kwargs) -> R:
        return test(*(map(check_size, given) if len(given) > 1 else given), **named)  # type: ignore[arg-type]

    return compare


def find_values(called: Callable[..., Any], given: Sequence[Any]) -> tuple[str, list[Any]]:
    """The name of what is called, by the environment or as a filter, and what it is given, its own text first."""
    from jinja2 import Environment
    from jinja2.nodes import EvalContext
    from jinja2.runtime import Context

    values = [one for one in given if not isinstance(one, Context | EvalContext | Environment)]
    if isinstance(getattr(called, "__self__", None), Environment):  # its method `call`
        called = values.pop(0)
        called = getattr(called, "__wrapped__", called)  # str.format, as jinja2 protects it
        values = [getattr(called, "__self__", None), *values]
    return getattr(called, "__name__", ""), values


def check_size(value: R) -> R:
    """The same value, if it is not far too large; looking through it takes steps."""
    if not isinstance(value, str | int):
        take_steps(check_length(measure_size(value)[0], MOST_HELD) // PER_STEP)
    return value


def leave(value: R) -> R:
    return value


def bound_items(value: Any) -> Any:
    """The same, also of items that are made one after the other."""
    return count_items(value) if isinstance(value, GeneratorType) else value


def count_items(items: Iterator[R]) -> Iterator[R]:
    """The same items, as long as they are not far too large together."""
    total = 0
    for one in items:
        total = check_length(total + measure_size(one)[0], MOST_HELD)
        take_steps(1)
        yield one


def check_length(length: int, limit: int = MAX_CHARACTERS) -> int:
    if length > limit:
        raise OverlongChatError
    return length


def count_rounds(items: Iterable[R]) -> Iterator[R]:
    """The same items, as long as steps are left."""
    for one in items:
        take_steps(1)
        yield one


def take_steps(count: int) -> None:
    taken = STEPS.get()
    taken[0] += count
    if taken[0] > MOST_STEPS:
        raise EndlessChatError
