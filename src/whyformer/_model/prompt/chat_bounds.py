"""Bounds on what a chat template writes and does: it comes with a model, and one line fills the memory or never ends.

    {{ messages[0].content * 10**8 }}
    {% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %} ...

A chat is rendered here once before it counts: every operation that makes a text longer is checked before it is done,
what is written is counted, and so are the steps: rounds of loops, calls, and what these go through. Other errors of the
template are left to the rendering that counts, which reports them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial, reduce, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from whyformer._model.preprocessors import ChatMessage, Tokenizer
from whyformer._model.text import MAX_CHARACTERS
from whyformer.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.runtime import Context
    from jinja2.sandbox import SandboxedEnvironment

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_POWER = 256  # bits of a power
MOST_STEPS = 1_000_000
CALL_STEPS = 10
PER_STEP = 30  # characters or items that a call goes through
COUNTED = "counted"  # a name for a filter
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
        """Writes a ~ b as a + b of texts, since only operators can be checked, and counts the rounds of loops."""

        def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802, the name that jinja2 looks for
            self.generic_visit(node)
            node.iter = nodes.Filter(node.iter, COUNTED, [], [], None, None, lineno=node.lineno)
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802, the name that jinja2 looks for
            self.generic_visit(node)
            texts: list[nodes.Expr] = [
                nodes.Filter(one, "string", [], [], None, None, lineno=node.lineno) for one in node.nodes
            ]
            return reduce(lambda left, right: nodes.Add(left, right, lineno=node.lineno), texts)

    environment = chat_template_utils._compile_jinja_template("").environment.overlay()
    environment.intercepted_binops = frozenset({"*", "**", "+"})
    environment.call_binop = partial(call_bounded_operator, environment)
    environment.filters = {name: check_call(one) for name, one in environment.filters.items()}
    environment.filters[COUNTED] = count_rounds
    environment.call = check_call(environment.call)
    tree = AddsChecks().visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.from_string(tree)


def call_bounded_operator(
    environment: "SandboxedEnvironment", context: "Context", operator: str, left: Any, right: Any
) -> Any:
    for one, other in ((left, right), (right, left)):
        if operator == "*" and hasattr(one, "__len__") and isinstance(other, int):
            check_length(len(one) * other)
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        take_steps(check_length(len(left) + len(right)) // PER_STEP)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        check_length(left.bit_length() * right, LARGEST_POWER)
    return environment.binop_table[operator](left, right)


def check_call(called: Callable[P, R]) -> Callable[P, R]:
    """The same function; numbers that it is given, such as a width, and texts that it returns may not be too large."""

    @wraps(called)
    def call(*given: P.args, **named: P.kwargs) -> R:
        for one in (*given, *named.values()):
            if isinstance(one, int):
                check_length(one)
        found = called(*given, **named)
        if isinstance(found, str):
            check_length(len(found))
        take_steps(CALL_STEPS + sum(len(one) for one in (*given, found) if hasattr(one, "__len__")) // PER_STEP)
        return found

    return call


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
