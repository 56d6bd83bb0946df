"""Kafka's log files: read exactly, cleaned as Kafka cleans them, and proved.

    import cordwood

    log = cordwood.open_log("/var/kafka/orders-0")
    for record in log:
        print(record.offset, record.key, record.value)
    table = log.to_arrow()

    print(cordwood.ls("/var/kafka"))
    for finding in cordwood.check("/var/kafka"):
        print(finding)

    print(cordwood.plan("/var/kafka").text())
    print(cordwood.clean("/var/kafka", output="/var/kafka-cleaned").text())
    print(cordwood.verify("/var/kafka", "/var/kafka-cleaned").text())

`__init__.pyi` lists the names and the modules that define them. A name is imported when it is first used, so that
`import cordwood` costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any


@functools.cache
def _module_of() -> Mapping[str, str]:
    """Return the module of each public name, read from the stub."""
    import ast

    stub = pkgutil.get_data(__name__, "__init__.pyi")
    assert stub is not None, "it is part of the package"
    imports = [one for one in ast.parse(stub).body if isinstance(one, ast.ImportFrom) and one.module is not None]
    return {name.name: str(one.module) for one in imports for name in one.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__") or name not in _module_of():
        raise AttributeError(f"module 'cordwood' has no attribute {name!r}")
    return getattr(importlib.import_module(_module_of()[name]), name)


def __dir__() -> list[str]:
    return sorted(_module_of())
