"""HTML and SVG as values, escaped when they are created.

All parts of a page pass through `tag`: it escapes text, but not markup. Markup comes from `tag` alone, so no page can
forget to escape a topic's name or a key. There is no template language: a page is a call of functions that mypy checks,
and its parts are ordinary values.

    tag("td", name, class_="name")     ─►  <td class="name">&lt;b&gt;</td>
    tag("tr", [tag("td", "1"), …])     ─►  <tr><td>1</td>…</tr>
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from cordwood.common.text import printable


class Markup(str):
    """Text that is already HTML or SVG."""

    __slots__ = ()


#: Content of an element: text, which is escaped; markup; None; or an iterable of these.
Content: TypeAlias = "str | Iterable[Content] | None"

#: Elements without an end tag.
_VOID = frozenset(["br", "input", "link", "meta"])


def tag(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """Make an element.

    Args:
        content: the content of the element.
        attributes: `_` becomes `-`; a trailing `_` is dropped. None or False omits the attribute; True writes it
            without a value. Numbers are rounded to two digits, finer than any screen shows.
    """
    pairs = "".join(_attribute(key, value) for key, value in attributes.items())
    start = f"<{name}{pairs}>"
    return Markup(start if name in _VOID else f"{start}{join(content)}</{name}>")


def join(content: Content) -> Markup:
    """Concatenate parts."""
    if content is None:
        return Markup("")
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(_escaped(content))
    return Markup("".join(map(join, content)))


def document(title: str, head: Content, body: Content, *, class_: str = "") -> str:
    """Make a whole page."""
    return "<!DOCTYPE html>\n" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            head,
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
        ),
        "\n",
        tag("body", body, class_=class_ or None),
        lang="en",
    )


def raw(text: str) -> Markup:
    """Mark Cordwood's own text as markup, such as a style sheet. Never use it for text from a log."""
    return Markup(text)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Escape text, and make invisible characters and lone surrogates visible, so that the page is valid UTF-8."""
    return escape(text if text.isprintable() or text == "\n" else printable(text))
