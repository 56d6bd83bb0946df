"""What every module keeps to: tests in their names and imports, the package in the size of its functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("test_*.py"))
NAME_MAX = 80
SOURCES = TESTS.parent / "src/cordwood"
#: Lines and parameters of a function; kernels take more parameters, as numba has no cheap objects.
LINES_MAX, PARAMETERS_MAX = 70, 8


def test_test_names_have_at_most_80_characters() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > NAME_MAX
    ]
    assert long == []


def test_no_module_imports_from_a_test_module() -> None:
    # What several modules need is in a helper module, whose name says what it holds.
    found = [
        f"{path.relative_to(TESTS)}: {node.module}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.startswith("tests.") and node.module.rpartition(".")[2].startswith("test_")
    ]
    assert found == []


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(SOURCES), node


def is_command(path: Path, node: ast.FunctionDef) -> bool:
    """Whether typer makes a command of it: its parameters are the options, its docstring the help."""
    return path.parts[0] == "cli" and node.name == "main"


def parameters(node: ast.FunctionDef) -> list[str]:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_functions_have_at_most_70_lines() -> None:
    lines = {}
    for path, node in functions():
        start = node.body[1].lineno if is_command(path, node) else node.lineno
        lines[f"{path}: {node.name}"] = (node.end_lineno or 0) - start + 1
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_no_parameter_is_called_one() -> None:
    found = [f"{path}: {node.name}" for path, node in functions() if "one" in parameters(node)]
    assert found == []


def test_functions_have_at_most_8_parameters() -> None:
    counts = {
        f"{path}: {node.name}": len(parameters(node))
        for path, node in functions()
        if path.parts[0] != "kernels" and not is_command(path, node)
    }
    assert {name: count for name, count in counts.items() if count > PARAMETERS_MAX} == {}
