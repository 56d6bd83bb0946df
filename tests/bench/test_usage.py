"""Memory and time of processes are measured without that of other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.bench.beside_kafka import Usage
from tests.fs.lock_holders import HOLD_WITH_AN_ODD_NAME, on_linux, other

pytestmark = pytest.mark.more


@on_linux
def test_a_process_may_have_any_bytes_in_its_name(tmp_path: Path) -> None:
    with other(HOLD_WITH_AN_ODD_NAME, tmp_path / ".lock"), Usage() as usage:
        pass
    assert usage.peak_bytes > 0
