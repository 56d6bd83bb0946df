"""Conventions: the names of tests and their imports; a name of a class stands for one class."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"
MODULES = sorted(TESTS.rglob("test_*.py"))
NAME_MAX = 80


def test_test_names_have_at_most_80_characters() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > NAME_MAX
    ]
    assert long == []


def test_no_module_imports_from_a_test_module() -> None:
    # Names used by several modules belong in a helper module that is named after its contents.
    found = [
        f"{path.relative_to(TESTS)}: {node.module}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.startswith("tests.") and node.module.rpartition(".")[2].startswith("test_")
    ]
    assert found == []


def test_no_two_classes_of_the_package_share_a_name() -> None:
    names = Counter(
        node.name
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
