"""Text is escaped when it is put into a page."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.text import printable
from cordwood.view.pages.markup import Markup, join, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("td", "<b>", tag("i", "&")) == "<td>&lt;b&gt;<i>&amp;</i></td>"
    assert tag("a", "x", href='/?q="><script>') == '<a href="/?q=&quot;&gt;&lt;script&gt;">x</a>'


def test_parts_that_are_not_there_show_nothing() -> None:
    assert join(["a", None, [tag("b", None), "c"]]) == "a<b></b>c"
    assert isinstance(join("a"), Markup)


def test_attributes_are_named_as_html_names_them() -> None:
    assert tag("option", selected=True, disabled=False, class_="c", aria_label="l", value=None) == (
        '<option selected class="c" aria-label="l"></option>'
    )
    assert tag("rect", x=1.239, y=2.0, width=7) == '<rect x="1.24" y="2" width="7"></rect>'


def test_what_a_terminal_or_a_reader_would_be_misled_by_is_made_visible() -> None:
    assert tag("p", "a\x1b\u202e\udce9") == "<p>a\\x1b\\u202e\\udce9</p>"


class One(HTMLParser):
    """Counts elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_ends_its_element_or_attribute(text: str, value: str) -> None:
    parser = One()
    parser.feed(tag("p", text, title=value))
    parser.close()
    assert parser.tags == [("p", [("title", value if value == "\n" else printable(value))])]
    assert parser.text == (text if text == "\n" else printable(text))
