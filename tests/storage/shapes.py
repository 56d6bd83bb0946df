"""The structure of a directory, as its listing shows it."""

from __future__ import annotations

import re
from typing import Any

from tests.fixtures import facts

FAMILY = re.compile(r"(kraft-classic|kraft-crashed|kraft-jbod|kraft|other-clients|legacy-(?:v0|v1|mixed))-(.*)")


def facts_of(name: str) -> tuple[dict[str, Any], str]:
    """The facts of a fixture's family, and the name of the fixture's own facts."""
    found = FAMILY.fullmatch(name)
    assert found is not None
    return facts(found[1]), found[2].replace("4.3.1", "431").replace("-", "_")


def shape_of(name: str) -> dict[str, dict[str, int]]:
    """Bytes and `.log` files by directory, as the broker left them."""
    family, which = facts_of(name)
    if name.startswith("kraft-crashed"):
        state = family["states"][which.removesuffix("_recovered")]
        return dict(state["shape_recovered" if which.endswith("_recovered") else "shape"])
    shape = family[f"shape_{which}"]
    if name.startswith("kraft-jbod"):
        return {f"{disk}/{path}": one for disk, shapes in shape.items() for path, one in shapes.items()}
    return dict(shape)
