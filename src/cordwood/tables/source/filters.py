"""The conditions of a query that are evaluated here, before rows reach Spark.

A condition tests one column, and is applied as early as possible:

    topic, partition     which partitions are read at all
    offset               which offsets are read; segments and batches outside of them are not
    timestamp            older segments and batches are not decoded; newer ones are, as timestamps are in no order
    key                  segments and batches without the key are not read, if a key index covers them; elsewhere values
                         of other keys are not copied

A condition accepted from Spark is finally evaluated for each row, so that Spark need not check it again. Spark
evaluates all others: conditions with `or`, on values, or with functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.common.types import TopicPartition

BoolArray = npt.NDArray[np.bool_]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one column.

    Attributes:
        test: one of `TESTS`, or NULL.
        value: the operand: microseconds for a timestamp, a tuple for a list of values.
        negated: invert the test. As in SQL, neither a test nor its inverse is true for a null.
    """

    column: str
    test: str
    value: Any = None
    negated: bool = False


NULL = "is null"
#: Each test takes one value or an array of numbers.
TESTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda found, value: found == value,
    ">": lambda found, value: found > value,
    ">=": lambda found, value: found >= value,
    "<": lambda found, value: found < value,
    "<=": lambda found, value: found <= value,
    "in": lambda found, values: np.isin(found, values) if isinstance(found, np.ndarray) else found in values,
    "starts with": lambda found, value: found.startswith(value),
    "ends with": lambda found, value: found.endswith(value),
    "contains": lambda found, value: value in found,
}
_OF_NUMBERS = {"=", ">", ">=", "<", "<=", "in"}
#: The tests supported on each column, and the type of its values.
_DECIDED: Mapping[str, tuple[set[str], type]] = {
    "topic": ({*_OF_NUMBERS, "starts with", "ends with", "contains"}, str),
    "partition": (_OF_NUMBERS, int),
    "offset": (_OF_NUMBERS, int),
    "timestamp": (_OF_NUMBERS, int),
    "key": ({"=", "in"}, bytes),
    "value": (set(), bytes),
}


def is_decided(condition: Condition) -> bool:
    """Return whether a condition can be evaluated here."""
    tests, kind = _DECIDED.get(condition.column, (set(), object))
    if condition.test == NULL:
        return condition.column in _DECIDED
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    return condition.test in tests and all(type(value) is kind for value in values)


def microseconds(value: Any) -> Any:
    """Convert a datetime with a time zone to microseconds since 1970; return any other value unchanged."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value


def selects(conditions: Iterable[Condition], partition: TopicPartition) -> bool:
    """Return whether a partition may have rows that meet all conditions."""
    found = {"topic": partition.topic, "partition": partition.partition}
    return all(_holds(one, found[one.column]) for one in conditions if one.column in found)


def _holds(condition: Condition, found: Any) -> bool:
    # Neither a topic nor a partition is null.
    return (
        bool(TESTS[condition.test](found, condition.value) if condition.test != NULL else False)
        is not condition.negated
    )


def offset_range(conditions: Iterable[Condition]) -> tuple[int, int]:
    """Return the offsets [start, end) that contain all rows that meet the conditions."""
    return _range((one for one in conditions if one.column == "offset"), 0, _OFFSET_MAX)


def oldest_ms(conditions: Iterable[Condition]) -> int | None:
    """Return a time in milliseconds such that no older row meets all conditions, or None if rows of any age may."""
    start, _ = _range((one for one in conditions if one.column == "timestamp"), -_OFFSET_MAX, _OFFSET_MAX)
    return None if start == -_OFFSET_MAX else start // 1000


def keys_in(conditions: Iterable[Condition]) -> tuple[bytes, ...] | None:
    """Return the keys that rows must have to meet all conditions, ascending.

    None if rows with any key may meet them, or if no row can.
    """
    found: set[bytes] | None = None
    for one in conditions:
        if one.column == "key" and one.test in ("=", "in") and not one.negated:
            values = set(one.value if isinstance(one.value, tuple) else (one.value,))
            found = values if found is None else found & values
    return tuple(sorted(found)) if found else None


def _range(conditions: Iterable[Condition], start: int, end: int) -> tuple[int, int]:
    for one in conditions:
        if one.negated or one.test == NULL:
            continue
        match one.test:
            case "=":
                low, behind = one.value, one.value + 1
            case "in":
                low, behind = (min(one.value), max(one.value) + 1) if one.value else (end, end)
            case ">" | ">=":
                low, behind = one.value + (one.test == ">"), end
            case _:
                low, behind = start, one.value + (one.test == "<=")
        start, end = max(start, low), min(end, behind)
    return start, max(start, end)


def meets_numbers(conditions: Sequence[Condition], column: str, found: npt.NDArray[np.int64]) -> BoolArray:
    """bool[rows]: where the numbers of a column without nulls meet its conditions."""
    met = np.ones(found.size, np.bool_)
    for one in conditions:
        if one.column == column:
            # A column of this kind has no nulls.
            holds = np.zeros(found.size, np.bool_) if one.test == NULL else TESTS[one.test](found, one.value)
            met &= ~holds if one.negated else holds
    return met


def text(conditions: Iterable[Condition]) -> str:
    """Format the conditions for one line of a log, without the `is not null` conditions that Spark adds."""
    return " and ".join(
        f"{'not ' * one.negated}{one.column} {one.test}{'' if one.test == NULL else f' {one.value!r}'}"
        for one in conditions
        if one.test != NULL or not one.negated
    )
