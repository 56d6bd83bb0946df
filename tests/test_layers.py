"""The tree of imports, as `pyproject.toml` states it."""

from __future__ import annotations

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_imports_go_down_the_layers_and_never_up() -> None:
    assert lint_imports(config_filename=str(PROJECT), no_cache=True) == EXIT_STATUS_SUCCESS
