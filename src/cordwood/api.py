"""The functions of `import cordwood` that take options: the commands, with each option as an argument.

A command's function is its only description. The command line gives it options values; Python users get a function that
is made from its signature and docstring:

* `paths: Sequence[str]` becomes `*paths`.
* A parameter of an options class becomes an argument for each of the class's fields, documented by the field's help.
* An argument that means the same in most commands is documented in `_SHARED`, unless the docstring describes it.
* Parameters in `_INTERNAL` are for callers within Cordwood.

Editors and type checkers read `api.pyi`, which `scripts/api-stub` writes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_origin

from cordwood.common.arguments import OptionField, build, checked, misspelt, no_path, option_fields
from cordwood.common.errors import CordwoodError

T = TypeVar("T")

#: The module of each function. It is imported when the function is first used: `ls` needs no live log.
MODULES: Mapping[str, str] = {
    "ls": "cordwood.commands.ls",
    "view_html": "cordwood.view.pages.report",
    "get": "cordwood.commands.get",
    "erase_check": "cordwood.commands.erase_check",
    "index": "cordwood.commands.index",
    "groups": "cordwood.commands.groups",
    "transactions": "cordwood.commands.transactions",
    "topics": "cordwood.commands.cluster",
    "configs": "cordwood.commands.cluster",
    "brokers": "cordwood.commands.cluster",
    "why": "cordwood.commands.why_node",
    "plan": "cordwood.commands.plan",
    "plan_exact": "cordwood.commands.plan_exact",
    "clean": "cordwood.commands.clean",
    "clean_in_place": "cordwood.commands.clean_in_place",
    "clean_in_tier": "cordwood.commands.clean_in_tier",
    "export_tier": "cordwood.commands.hand_over",
    "adopt_tier": "cordwood.commands.hand_over",
    "abort_transaction": "cordwood.commands.abort_transaction",
    "verify": "cordwood.commands.verify",
    "compare": "cordwood.commands.compare",
    "simulate": "cordwood.simulation.simulate",
    "explain": "cordwood.simulation.explain",
    "latest_table": "cordwood.commands.table",
    "table_offsets": "cordwood.commands.table",
    "write_table": "cordwood.commands.table",
}
_INTERNAL = ("clock", "limit", "on_forecast")
_SHARED: Mapping[str, str] = {
    "paths": "log directories, folders of several, or partition directories.",
    "spark": "a session to use, which is left running; default: a new one.",
    "on_plan": "called with the plan and the number of bytes that will be read.",
    "on_progress": "called with the number of bytes read so far.",
    "fs": "the file system; default: this machine's.",
}
#: Arguments that are paths, as text or as a `pathlib.Path`.
_PATHS = ("paths", "output", "before", "after")
#: The types of checked arguments other than options, by their annotation in the source.
_TYPES: Mapping[str, Any] = {"str": str, "int": int, "Sequence[bytes | str]": Sequence[bytes | str]}


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = function = _with_arguments(getattr(importlib.import_module(MODULES[name]), name))
    return function


def _with_arguments(command: Callable[..., T]) -> Callable[..., T]:
    """Return a command as a function with an argument for each option."""
    name, own = command.__name__, inspect.signature(command)
    kinds = {
        one.name: command.__globals__[one.annotation]
        for one in own.parameters.values()
        if one.annotation.endswith("Options")
    }
    plain = [one for one in own.parameters.values() if one.name not in (*kinds, *_INTERNAL)]
    options = [field for kind in kinds.values() for field in option_fields(kind)]
    signature = own.replace(parameters=[*_plain_parameters(plain), *map(_option_parameter, options)])
    types = {one.name: _TYPES[one.annotation] for one in plain if one.annotation in _TYPES}
    types |= {field.name: field.type for field in options}

    @functools.wraps(command)
    def call(*positional: Any, **named: Any) -> T:
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            raise misspelt(name, error, signature.parameters) from None
        bound.apply_defaults()
        given = bound.arguments
        if not given.get("paths", True) and not given.get("brokers"):
            raise no_path(name)
        try:
            given |= {one: checked(one, kind, given[one]) for one, kind in types.items()}
            if "paths" in given:
                given["paths"] = tuple(checked("a path", str, path) for path in given["paths"])
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        try:
            values = {one: build(kind, given) for one, kind in kinds.items()}
            return command(**{one.name: given[one.name] for one in plain}, **values)
        except CordwoodError as error:
            error.args = tuple(_in_python(text, options, [one.name for one in plain]) for text in error.args)
            raise

    call.__module__, call.__doc__ = __name__, _documentation(command, signature, options)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _plain_parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield the parameters that are no options; those after `*paths` are keywords."""
    are_keywords = False
    for one in parameters:
        kind = inspect.Parameter.KEYWORD_ONLY if are_keywords else one.kind
        if one.name == "paths":
            kind, are_keywords = inspect.Parameter.VAR_POSITIONAL, True
        yield one.replace(kind=kind, annotation="AnyPath" if one.name in _PATHS else one.annotation)


def _option_parameter(field: OptionField) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=field.default, annotation=field.argument_text)


def _documentation(command: Callable[..., Any], signature: inspect.Signature, options: Sequence[OptionField]) -> str:
    """Return a command's docstring with all arguments, and a section of options before its section `Raises`."""
    text, raises, errors = inspect.cleandoc(command.__doc__ or "").partition("Raises:")
    text, _, described = text.partition("Args:")
    own = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", described, re.MULTILINE))
    arguments = {
        name: own.get(name) or _SHARED[name] for name in signature.parameters if name in own or name in _SHARED
    }
    sections = {"Args:": arguments, "Options:": {field.name: field.option.help for field in options}}
    for title, texts in sections.items():
        lines = [
            textwrap.fill(f"{name}: {' '.join(words.split())}", 112, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for name, words in texts.items()
        ]
        text += "\n".join([title, *lines, "", ""])
    return text + raises + errors


#: A whole command in an error, which stays as it is; or an option of the command line, perhaps with its value.
_FLAG = re.compile(
    r"""`?cordwood\ [a-z][^;,`]*
      | (--[a-z][a-z-]*)
        (?: \ ( \S+(?=:\ ) | -?\d[\w.]* | [A-Z]+\b(?:\|\w+)? | \S+=[^\s,;:)]* | (?:end|null|here|spark)\b
                | \w+\[[^]]*\] ) )?""",
    re.VERBOSE,
)


def _in_python(said: Any, options: Sequence[OptionField], others: Iterable[str]) -> Any:
    """Return an error's words with Python's arguments in place of the command line's options.

    `give --high-watermark end` becomes `give high_watermark='end'`, and `--retention` becomes `retention=True`.

    Args:
        said: an argument of the error; returned unchanged if it contains no flag.
        options: options of the function.
        others: names of its other arguments, such as `output`.
    """
    by_flag = {f"--{name}": (name, str) for name in others} | {one.flag: (one.name, one.type) for one in options}

    def argument(found: re.Match[str]) -> str:
        name, kind = by_flag.get(found[1] or "", ("", None))
        if not name:
            return found[0]
        value = found[2] or ""
        if kind is bool:
            return f"{name}={not found[1].startswith('--no-') or name.startswith('no_')}" + (value and f" {value}")
        if value and get_origin(kind) is Sequence:
            return f"{name}={[value]}"
        if not value:
            return f"{name}="
        return f"{name}={value}" if value[0].isdigit() or value[0] == "-" or value.isupper() else f"{name}={value!r}"

    text = str(said)
    return _FLAG.sub(argument, text) if "--" in text else said
