"""Errors carry facts as attributes; no code reads them out of a message."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import cordwood
from cordwood.common.errors import BatchProblem, CorruptBatchError, DataError

SOURCES = Path(cordwood.__file__).parent
#: Attributes that hold sentences.
SENTENCES = {"what", "why", "meaning", "args"}
#: Methods that answer a question about a text.
QUESTIONS = {"startswith", "endswith", "find", "index", "count", "match", "search", "fullmatch"}
ALLOWED = {
    # Only leaves out words that are already in the line above.
    "one.what == MEANINGS[one.kind]",
    # Adds the name of the file, unless it is there already.
    "name in finding.what",
    # For a job that failed in Java, Spark's exception has no attribute, only a message.
    "_FULL not in str(error)",
    # An S3 server's own error code: the library gives no other access to it.
    "re.search('<Code>([A-Za-z]+)</Code>', str(error))",
    # An answer that broke off is no error of its own kind in that library.
    "'response body' not in str(error)",
    # Of a Python worker's error in a task, Spark keeps nothing but its traceback as text.
    "_OUR_ERROR.search(str(error))",
}


def is_sentence(node: ast.AST) -> bool:
    """Whether an expression is the text of an error, a finding or an action."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(isinstance(one, ast.Name) and "error" in one.id for one in node.args)
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def branches_on_text(source: str) -> Iterator[str]:
    """Expressions that compare or search the text of an error, a finding or an action."""
    for node in ast.walk(ast.parse(source)):
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
                continue
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in QUESTIONS:
            sides = [node.func.value, *node.args]
        if any(is_sentence(side) for side in sides):
            yield ast.unparse(node)


def test_no_code_branches_on_the_words_of_an_error_or_finding() -> None:
    found = {
        f"{path.relative_to(SOURCES)}: {text}"
        for path in SOURCES.rglob("*.py")
        for text in branches_on_text(path.read_text())
        if text not in ALLOWED
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "if 'wrapper' in error.what: pass",
        "if error.what in PROBLEMS: pass",
        "if action.why == NO_LOG: pass",
        "if str(error) != '': pass",
        "if error.args[0].startswith('x') or error.what.startswith('x'): pass",
        "re.search('torn', fault.what)",
    ],
)
def test_each_way_to_branch_on_words_is_recognized(source: str) -> None:
    assert list(branches_on_text(source))


def raise_at(path: str) -> None:
    try:
        raise CorruptBatchError("broken", kind=BatchProblem.RECORD, position=7, offset=3)
    except DataError as error:
        raise error.at(path) from None


def test_error_keeps_its_traceback_when_its_file_is_filled_in() -> None:
    with pytest.raises(CorruptBatchError) as caught:
        raise_at("a.log")
    error = caught.value
    assert (error.kind, error.path, error.position, error.offset) == (BatchProblem.RECORD, "a.log", 7, 3)
    assert str(error) == "broken in a.log at position 7 (offset 3)"
    assert "raise CorruptBatchError" in "".join(traceback.format_exception(error))
