"""Programs of the machine that some tests need."""

from __future__ import annotations

import shutil

import pytest

from tests.knobs import REQUIRE_KAFKA


def need_tools(*names: str, packages: str) -> None:
    """Skip the test where a program is missing; fail where it has to be there.

    Args:
        packages: those of Debian that have the programs.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing and REQUIRE_KAFKA:
        raise AssertionError(f"{' and '.join(missing)} must be here: apt-get install {packages}")
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}")
