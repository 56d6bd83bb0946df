"""Arguments of calls from Python: convert paths to text, and describe an argument of the wrong type in a sentence."""

from __future__ import annotations

import os
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

#: The types of paths that users may pass.
AnyPath: TypeAlias = str | os.PathLike[str]

_WORDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    type(None): "None",
}
_WORDS_FOR_MANY: Mapping[Any, str] = {int: "whole numbers", str: "texts", bytes: "bytes"}
#: Maximum length of a value in an error, in characters.
_SHOWN = 60


def text_paths(paths: Iterable[AnyPath]) -> tuple[str, ...]:
    """Convert paths to text."""
    return tuple(os.fspath(path) for path in paths)


def no_path(function: str) -> TypeError:
    """Return the error for a call without paths, such as from a pattern without a match: the call would do nothing."""
    return TypeError(f"{function}() is given no path: give at least one")


def misspelt(function: str, error: TypeError, names: Iterable[str]) -> TypeError:
    """Return the error for a call with wrong arguments, with the function's name and the nearest argument's name."""
    from difflib import get_close_matches  # only a misspelt argument needs it

    _, unexpected, given = str(error).partition("unexpected keyword argument ")
    nearest = get_close_matches(given.strip("'"), list(names), n=1) if unexpected else []
    return TypeError(f"{function}() {error}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def checked(name: str, kind: Any, given: Any) -> Any:
    """Return an argument of a Python call, with a path as text.

    Raises:
        TypeError: the argument has another type.
    """
    value = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not _is_a(value, kind):
        lone = isinstance(value, str | bytes) and get_origin(kind) is Sequence
        raise TypeError(
            f"{name} is {_in_words(kind)}: pass [{value!r}], not {value!r}"
            if lone
            else f"{name} is {_in_words(kind)}, not {shown(value)}"
        )
    return value


def check_whole(name: str, number: object) -> None:
    """Raise TypeError unless a value is a whole number; avoids `checked`, which takes longer than a small append."""
    if type(number) is not int:
        checked(name, int, number)


def check_number(name: str, number: int, least: int, most: int) -> None:
    """Raise an error unless a value is a whole number in a range."""
    check_whole(name, number)
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; it can be {least} to {most}")


def _is_a(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is Sequence:
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            return False
        # Check one value of each class only: there may be a million keys.
        return all(_is_a(each, parts[0]) for each in {type(each): each for each in value}.values())
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_is_a(k, parts[0]) and _is_a(v, parts[1]) for k, v in value.items())
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _in_words(kind: Any, words: Mapping[Any, str] = _WORDS) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(part, words) for part in parts)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is Sequence:
        return f"a list of {_in_words(parts[0], _WORDS_FOR_MANY)}"
    if origin is Mapping:
        return f"a mapping of {' to '.join(_in_words(part, _WORDS_FOR_MANY) for part in parts)}"
    return words[kind]


def shown(value: object) -> str:
    """Format a value of the wrong type for an error."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'} ({type(value).__name__})"
