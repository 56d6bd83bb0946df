"""Dead code that vulture (`make lint`) does not look for: private constants."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.more

SOURCES = Path(__file__).parents[1] / "src"


def unused_private_constants(text: str) -> list[str]:
    """Private names that a module assigns at its top level and never reads."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    top_level = {
        name.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for name in ast.walk(statement)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return sorted(
        name for name in top_level - read if name.startswith("_") and not name.startswith("__") and name != "_"
    )


@pytest.mark.parametrize(
    ("text", "unused"),
    [("_A = 1\nB = 2\n", ["_A"]), ("_A = 1\nB = _A\n", []), ("_A: int = 1\n", ["_A"]), ("_, _B = 1, 2\n", ["_B"])],
)
def test_unused_private_constants_are_found(text: str, unused: list[str]) -> None:
    assert unused_private_constants(text) == unused


def test_each_private_constant_is_used() -> None:
    modules = {str(path.relative_to(SOURCES)): path.read_text() for path in sorted(SOURCES.rglob("*.py"))}
    imported = {
        alias.name
        for text in modules.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {name: sorted(set(unused_private_constants(text)) - imported) for name, text in modules.items()}
    assert {name: unused for name, unused in found.items() if unused} == {}
