"""The numbered cases of docs/cases.md: each names the tests that show it, and each number in a test is on the page.

Tests name the cases that they show: in a comment (`# case 88`, `# cases 43, 44`), in a transcript's heading
(`# cases 99-101: …` in `cases/*.txt`), or in a scenario's reason ("… (case 88)." in `tests/kafka/scenarios`). The lines
"Shown by" of the page are made from these; CORDWOOD_REWRITE=1 writes them, to be reviewed as a diff.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.cleaning.replay import SCENARIOS
from tests.cleaning.transcript import FOLDER, cases
from tests.knobs import REWRITE

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "cases.md"
NUMBERS = r"(?P<numbers>\d+b?(?:-\d+)?(?:, \d+b?(?:-\d+)?)*)"
#: Cases in replayed scenarios that only Kafka does: the live log does everything but Kafka's counted checks.
KAFKA_ALONE = {"clean-aborted": "21"}


def numbers(text: str) -> Iterator[str]:
    """`8, 11-13, 86b` one by one."""
    for part in text.split(", "):
        first, _, last = part.partition("-")
        yield from (map(str, range(int(first), int(last) + 1)) if last else [part])


def named(text: str) -> Iterator[str]:
    """The numbers of all cases that a text names."""
    for found in re.finditer(rf"\bcases? {NUMBERS}", text):
        yield from numbers(found["numbers"])


def in_comments(path: Path) -> Iterator[tuple[str, str]]:
    """Name of each test of a module with the cases that its comments name."""
    text = path.read_text()
    if not re.search(rf"#.*\bcases? {NUMBERS}", text):
        return
    comments = [
        (token.start[0], number)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        for number in named(token.string)
    ]
    tests = [
        (min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.end_lineno or 0, node.name)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    for line, number in comments:
        names = [name for first, last, name in tests if first <= line <= last]
        assert names, f"{path}:{line}: case {number} stands outside of a test"
        yield names[0], number


@functools.cache
def shown() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """By number: the places where Cordwood does a case, as links of the page; and scenarios in which only Kafka does
    it.
    """
    ours: dict[str, list[str]] = defaultdict(list)
    kafkas: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, number in in_comments(path):
            ours[number].append(f"[{name}](../tests/{path.relative_to(TESTS)})")
    for path in sorted(FOLDER.glob("*.txt")):
        for heading in cases(path.read_text()):
            for number in named(heading):
                ours[number].append(f"[{path.name}](../tests/{path.relative_to(TESTS)})")
    for name, path in SCENARIOS.items():
        alone = set(numbers(KAFKA_ALONE[name])) if name in KAFKA_ALONE else set()
        for number in named(json.loads(path.read_text())["why"]):
            (kafkas if number in alone else ours)[number].append(f"[{path.name}](../tests/{path.relative_to(TESTS)})")
    return {at: list(dict.fromkeys(links)) for at, links in ours.items()}, kafkas


# ---- the page --------------------------------------------------------------------------------------------------------


def entries(page: str) -> dict[str, str]:
    """The paragraph of each case, by its number."""
    found = re.findall(r"^\*\*(\d+b?)\*\* (.+?)(?=\n\n|\n*\Z)", page, re.MULTILINE | re.DOTALL)
    assert len(dict(found)) == len(found), "a number stands twice"
    return dict(found)


def described(paragraph: str) -> str:
    """A paragraph without its generated line."""
    return paragraph.partition("\n*Shown by* ")[0]


def with_tests(page: str, ours: dict[str, list[str]]) -> str:
    """The page with the line that names the tests of each case."""
    for number, paragraph in entries(page).items():
        shown_by = f"\n*Shown by* {', '.join(ours[number])}." if number in ours else ""
        page = page.replace(f"**{number}** {paragraph}", f"**{number}** {described(paragraph)}{shown_by}")
    return page


def test_each_case_on_the_page_names_the_tests_that_show_it() -> None:
    page = PAGE.read_text()
    wanted = with_tests(page, shown()[0])
    if REWRITE:
        PAGE.write_text(wanted)
    else:
        assert page == wanted, "CORDWOOD_REWRITE=1 rewrites docs/cases.md"


def test_each_case_without_a_test_says_why() -> None:
    ours, kafkas = shown()
    for number, paragraph in entries(PAGE.read_text()).items():
        reason = re.search(r"^\*Not (yet|here):\* .{20}", described(paragraph), re.MULTILINE)
        assert (reason is None) == (number in ours), f"case {number}: {paragraph}"
        if reason is not None:
            missing = [link for link in kafkas.get(number, []) if link not in described(paragraph)]
            assert missing == [], f"case {number}"


def test_each_number_in_a_test_is_on_the_page() -> None:
    ours, kafkas = shown()
    on_page = list(entries(PAGE.read_text()))
    assert sorted((ours.keys() | kafkas.keys()) - set(on_page)) == []
    assert on_page == [*numbers("1-86, 86b, 87-116, 116b, 117-180")]
