"""The command line: `cordwood VERB`. Each verb is a function with its name; its module is imported when it is used."""

from __future__ import annotations

import functools
import importlib
import io
import json
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from cordwood.common.errors import CordwoodError, DataError, LockedError, NoSpaceError
from cordwood.common.text import Presentable, printable
from cordwood.common.threads import ending
from cordwood.common.types import override
from cordwood.fs import by_url
from cordwood.fs.base import is_full

#: Exit codes, for shells, scripts and pipelines. Typer also uses 2, for wrong usage.
EXIT_OK = 0
EXIT_DAMAGE = 1
EXIT_REQUEST = 2
EXIT_LOCKED = 3
EXIT_FULL = 4
EXIT_MEMORY = 5
EXIT_OUR_FAULT = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
#: Exit codes of requests that fail for a specific reason.
_REQUEST_CODES = {LockedError: EXIT_LOCKED, NoSpaceError: EXIT_FULL}

#: Verbs by user goal, in the order of `--help`, each with its module in `cordwood.cli` and a line of help. The help is
#: here so that `--help` imports none of the modules.
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Read": {
        "ls": ("partitions", "List partitions: offsets, sizes, policy, dirty bytes and state."),
        "dump": ("dump", "Print the contents of logs, segments, indexes, snapshots and checkpoints."),
        "get": ("keys", "Show the history of a key: all its records, and the clean that will remove each."),
        "table": ("table", "Show or write the last value of each key: a topic as a table."),
        "groups": ("coordinators", "List consumer groups: state, members, committed offsets and lag."),
        "transactions": ("coordinators", "List open, long and hanging transactions, and the data that they hold back."),
        "topics": ("cluster", "List the topics of a cluster, from its metadata log, at any time."),
        "configs": ("cluster", "List the configs that are set in a cluster, from its metadata log."),
        "brokers": ("cluster", "List the brokers of a cluster, from its metadata log."),
    },
    "Explain and check": {
        "why": ("partitions", "Explain the size of partitions: the data that could go, its causes, and the next step."),
        "plan": ("clean", "Show the effect of a clean on each partition, with reasons. Changes nothing."),
        "check": (
            "partitions",
            "Foretell a broker's start, and find every inconsistency; exit status 1 if anything is damaged.",
        ),
        "compare": (
            "comparison",
            "Compare the replicas of each partition; exit status 1 if an election could change what consumers see.",
        ),
        "view": ("view", "Show disks, topics, removable data and its causes as pages in a browser, or as one file."),
        "simulate": ("simulation", "Predict the disk that a topic will take: months of a workload, in seconds."),
        "explain": ("simulation", "Predict the effect of other configs on a topic's log, now and over weeks."),
    },
    "Clean and change": {
        "clean": ("clean", "Clean logs by the rules of Kafka's cleaner, into a copy or in place."),
        "verify": ("clean", "Prove that a clean kept its guarantees, from the logs before and after it."),
        "undo": ("clean", "Restore the files that a clean in place replaced and kept."),
        "erase-check": ("keys", "Look for traces of erased keys in all files, and certify it."),
        "index": ("keys", "Make key indexes of segments, which find a key in milliseconds, or remove them."),
        "abort-transaction": ("coordinators", "End a hanging transaction in the logs of stopped brokers."),
        "fetch": ("clean", "Bring a directory back from an object store, complete and checked."),
        "tier": ("tier", "Hand a tier over from a live log to its broker (export), or back (adopt)."),
    },
    "Keep alive": {
        "run": ("run", "Keep logs alive without a broker: compact them, delete old segments, report their health."),
    },
    "Others": {
        "demo": ("demo", "Make a small log, clean it, and show which records were removed and why."),
        "bench": ("bench", "Measure how fast this machine reads a log, or cleans one compared with Kafka."),
        "cache": ("environment", "List the caches that save time, or remove them."),
        "pack": ("environment", "Make an archive of this Python environment, for the executors of a Spark cluster."),
        "help": ("main", "Show a command's options, or list all commands."),
    },
}
#: Verb: (module, one line of help).
VERBS = {verb: (f"cordwood.cli.{module}", text) for verbs in GROUPS.values() for verb, (module, text) in verbs.items()}

#: Minimum similarity of a misspelt word and a verb, from 0 to 1.
_ALIKE = 0.65


class _Verbosity:
    """Whether the traceback of a defect is shown."""

    asked = False

    @classmethod
    def ask(cls, value: bool) -> None:
        """Record the option -v, before a verb or among its options."""
        cls.asked = cls.asked or value


class _Verb(TyperCommand):
    """Shows options in groups: first the verb's own, then those shared by commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        # Every verb has this option, as people append it to a failed command line. The help lists it once, among the
        # options before a verb.
        verbose = TyperOption(
            param_decls=["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            hidden=True,
            callback=lambda _ctx, _param, value: _Verbosity.ask(value),
        )
        return [*super().get_params(ctx), verbose]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            if (line := param.get_help_record(ctx)) is not None:
                own = "Arguments" if param.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(param, "rich_help_panel", None) or own, []).append(line)
        for title in sorted(panels, key=_own_first):
            with formatter.section(title):
                formatter.write_dl(panels[title])


def _own_first(title: str) -> int:
    return {"Arguments": 0, "Options": 1}.get(title, 2)


class _Verbs(TyperGroup):
    """Looks up verbs in a table, so that only the module of the chosen verb is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(VERBS[cmd_name][0]), cmd_name.replace("-", "_"))
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(cmd_name, cls=_Verb)(_guarded(command))
        return typer.main.get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and not args[0].startswith("-"):
            alike = get_close_matches(args[0], VERBS, cutoff=_ALIKE)
            hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
            ctx.fail(f"There is no command {printable(args[0])}.{hint} All commands: cordwood help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, VERBS[name][1]) for name in names])


app = typer.Typer(cls=_Verbs, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _version() -> str:
    from importlib.metadata import version  # slow, and rarely needed

    return version("cordwood")


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"cordwood {_version()}")
        raise typer.Exit


@app.callback()
def cordwood(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show the traceback if Cordwood itself has a defect.")
    ] = False,
) -> None:
    """Read, check and clean Kafka's logs without a broker, and prove that a clean is right."""
    _Verbosity.asked = verbose


def _guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a verb so that it always ends with an exit code and, on failure, a sentence."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            code = command(*arguments, **options)
            sys.stdout.flush()
        except KeyboardInterrupt as interrupt:  # Spark replaces our signal handler with its own
            tell("interrupted")
            _tell_notes(interrupt)
            code = EXIT_INTERRUPTED
        except (CordwoodError, OSError) as error:
            code = _explained(error)
        except MemoryError:
            tell("there is not enough memory; give --memory, or fewer partitions at a time")
            code = EXIT_MEMORY
        except (typer.Exit, typer.Abort, TyperException):  # Typer ends a command by raising these
            raise
        except Exception as error:
            code = _defect(error)
        raise typer.Exit(code or EXIT_OK)

    return run


def _explained(error: CordwoodError | OSError) -> int:
    """Report an error in one line and return its exit code."""
    if isinstance(error, OSError):
        # Every file that we open has a name; an error without a name is about our output.
        if not error.filename:
            give_up_output()
        # A pipe whose reader has quit, such as `head`, is not an error.
        if isinstance(error, BrokenPipeError):
            return EXIT_OK
        tell(f"{error.strerror or error}: {error.filename or 'the output'}")
        _tell_notes(error)
        return EXIT_FULL if error.filename and is_full(error) else EXIT_REQUEST
    tell(str(error))
    _tell_notes(error)
    if isinstance(error, DataError):
        return EXIT_DAMAGE
    return next((code for kind, code in _REQUEST_CODES.items() if isinstance(error, kind)), EXIT_REQUEST)


def _defect(error: BaseException) -> int:
    """Report an error that no input may cause, and explain how to get its traceback."""
    if _Verbosity.asked:
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    tell_defect(f"{type(error).__name__}: {error}{where}")
    _tell_notes(error)
    return EXIT_OUR_FAULT


def tell_defect(what: str) -> None:
    """Report a defect in Cordwood and suggest a next step."""
    again = f"run it again with -v for a traceback:  {shlex.join(['cordwood', '-v', *sys.argv[1:]])}"
    tell(f"this is a defect in Cordwood: {what}")
    if not _Verbosity.asked:
        tell(again)
    version = _version()
    tell(f"report it, with the traceback and the version ({version}), to Cordwood's maintainers, on the project's page")


def exit_code_of(problems: Iterable[DataError | OSError]) -> int:
    """Return the exit code of a listing with unreadable files: damage outranks a failed file system."""
    codes = [EXIT_DAMAGE if isinstance(one, DataError) else EXIT_REQUEST for one in problems]
    return min(codes, default=EXIT_OK)


def give_up_output() -> None:
    """Discard pending output: flushing it would fail, and be reported, a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(text: str) -> bool:
    """Print a result. If the reader of a pipe has quit, the command still ends with its own exit code.

    Returns:
        False if the output's reader has quit.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        give_up_output()
        return False
    return True


def show_result(result: Presentable, *, as_json: bool, lines: Iterable[str] | None = None) -> None:
    """Print a result as text or as one JSON document.

    Args:
        lines: the text, if options change it.
    """
    if as_json:
        show(json.dumps(result.document(), indent=1))
    else:
        show(result.text() if lines is None else "\n".join(lines))


def tell(message: str) -> None:
    """Print a message on stderr."""
    print(f"cordwood: {printable(message)}", file=sys.stderr)


def tell_forecast(lines: Sequence[str]) -> None:
    """Warn, before a command reads directories, of anything that keeps a broker from serving them in full."""
    for line in lines:
        tell(line)


def _tell_notes(error: BaseException) -> None:
    """Report files that an interrupted verb left behind."""
    for note in getattr(error, "__notes__", ()):
        tell(note)


def named(path: str) -> str:
    """Return a path that ends with a name: whether `.` is a partition depends on the directory's name."""
    by_url.named(path)
    return path if Path(path).name not in ("", "..") else str(Path(path).resolve())


def help(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Which command. Default: all of them.")
    ] = None,
) -> None:
    """Show what a command does and its options, or list all commands."""
    app([*([] if command is None else [command]), "--help"], prog_name="cordwood")


def _stop(number: int, frame: FrameType | None) -> None:
    """End on a signal: close open files and remove unfinished output."""
    ending.set()
    if number == signal.SIGINT:
        tell("interrupted")
    sys.exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _repair_streams() -> None:
    """Make sure that writes to the standard streams fail only for real errors."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the parent closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the locale's encoding may lack characters that we print


#: Loggers whose messages every command shows, such as kernel compilation and damaged metadata.
_LOGGERS = ("cordwood.kernels", "cordwood.storage")


class _Once(logging.Handler):
    """Shows each distinct message on stderr once: a page rereads the metadata each time it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._shown:
            self._shown.add(message)
            tell(message)


def _show_logged() -> None:
    """Show on stderr why the first run is slow, and which damaged files are replaced by others."""
    handler = _Once()
    for name in _LOGGERS:
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.propagate = False


def main() -> None:
    """Run the command line and exit with its code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    _repair_streams()
    _show_logged()
    code: object = EXIT_OUR_FAULT
    try:
        try:
            app(prog_name="cordwood")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        _tell_notes(end)
        code = end.code
    except OSError as error:  # raised by help and the like, outside of any guarded verb
        code = _explained(error)
    except BaseException as error:
        code = _defect(error)
    sys.stderr.flush()
    # All output is written. A regular exit would spend a tenth of a second dismantling the kernels' compiler.
    os._exit(code if isinstance(code, int) else EXIT_OK if code is None else EXIT_OUR_FAULT)


if __name__ == "__main__":
    main()
