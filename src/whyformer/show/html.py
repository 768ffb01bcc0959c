"""HTML elements with everything escaped.

    make_element("p", label, class_="note")     <p class="note">...</p>

Everything that is not `Html` is escaped: tokens, labels, file names, numbers. Only trusted markup may be wrapped in
`Html` directly; in doubt use `make_element` or `escape_html`.
"""

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from whyformer.show.visible import make_visible

Content: TypeAlias = str | bool | int | float | None

VOID_ELEMENTS = {"img", "input", "br", "hr", "meta", "wbr"}


class Html(str):
    """Trusted markup, which is not escaped again."""

    __slots__ = ()


def escape_html(text: object) -> Html:
    """Untrusted text, safe inside an element or a quoted attribute."""
    return Html(escape(make_visible(str(text)), quote=True))


def escape_lines(text: str) -> Html:
    """Like `escape_html`, but keeps line breaks."""
    return join_html(text.split("\n"), "\n")


def make_element(name: str, /, *children: Content, **attributes: Content) -> Html:
    """<name attributes>children</name>

    Escapes every child and attribute value that is not Html and leaves out None. An attribute `class_` becomes `class`,
    `aria_label` becomes `aria-label`; True gives an attribute without a value.
    """
    listed = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opening = f"<{name}{listed}>"
    return Html(opening if name in VOID_ELEMENTS else f"{opening}{join_html(children)}</{name}>")


def join_html(children: Iterable[Content], separator: str = "") -> Html:
    """The children one after the other; escapes all but Html and leaves out None."""
    return Html(
        separator.join(
            child if isinstance(child, Html) else escape_html(child) for child in children if child is not None
        )
    )
