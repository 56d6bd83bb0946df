"""What `import cordwood` offers."""

from __future__ import annotations

import subprocess
import sys

import cordwood
from tests.fixtures import fixture


def test_every_name_can_be_imported() -> None:
    assert {"Finding", "Log", "check", "ls", "open_log"} <= set(cordwood.__all__)
    for name in cordwood.__all__:
        assert getattr(cordwood, name) is not None


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import cordwood; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if name.partition(".")[0] in ("cordwood", "numpy", "numba", "pyarrow")] == [
        "cordwood"
    ]


def test_a_listing_prints_a_line_per_partition() -> None:
    listing = cordwood.ls(str(fixture("kraft-classic-before")), topics=["orders"])
    assert str(listing).splitlines()[0] == "orders-0: 4 segments, 34351 bytes, start offset 0, next offset 494"
    assert len(str(listing).splitlines()) == len(listing.partitions) == 3
