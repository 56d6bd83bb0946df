"""Lines that a test has for the end of a run, where they are seen whether or not the test passes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

_PROPERTY = "summary"


def lines_of(lines: Sequence[str]) -> tuple[str, str]:
    """The lines as a property of a test, which pytest carries to the process that writes the summary."""
    return _PROPERTY, json.dumps(list(lines))


def lines_for(reporter: pytest.TerminalReporter) -> list[str]:
    """The lines of all tests of this run."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    values = (
        value for one in reports if one.when == "call" for name, value in one.user_properties if name == _PROPERTY
    )
    return [str(line) for value in values for line in json.loads(str(value))]
