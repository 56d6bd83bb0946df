"""The command line: `cordwood VERB`. Each verb lives in a module of its own and is imported when it is called for."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from cordwood.errors import CordwoodError, DataError, LockedError

#: What a shell, a script or a pipeline learns from how we end. Wrong usage, 2, is Typer's.
EXIT_OK = 0
EXIT_DAMAGE = 1
EXIT_REQUEST = 2
EXIT_LOCKED = 3
EXIT_OUR_FAULT = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

#: Verb: (module with its `main`, one line of help). The help stands here so that `--help` imports none of them.
VERBS = {
    "ls": ("cordwood.cli.ls", "List partitions: offsets, sizes, policy, what is dirty, and their state."),
    "dump": ("cordwood.cli.dump", "Print what is in logs, segments, indexes, snapshots and checkpoints."),
    "check": ("cordwood.cli.check", "Find every inconsistency, with its place; exit 1 if there is any."),
    "demo": ("cordwood.cli.demo", "Show a small real log: list it, look into it, check it."),
    "bench": ("cordwood.cli.bench", "Measure how fast this machine reads a log."),
}


class _Verbs(TyperGroup):
    """Finds the verbs by table, so that one verb never pays for another's imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name][0]).main
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(cmd_name)(_guarded(command))
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


app = typer.Typer(cls=_Verbs, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def cordwood() -> None:
    """Kafka's log files, read exactly: what is in a log, and whether it is whole."""


def _guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """A verb that ends with an exit code and a sentence, whatever happens."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            code = command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever reads our output has enough, as `head` does. Python would complain once more when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_OK
        except KeyboardInterrupt:
            print("cordwood: interrupted; nothing was changed", file=sys.stderr)
            code = EXIT_INTERRUPTED
        except CordwoodError as error:
            print(f"cordwood: {error}", file=sys.stderr)
            code = EXIT_LOCKED if isinstance(error, LockedError) else EXIT_REQUEST
            code = EXIT_DAMAGE if isinstance(error, DataError) else code
        except OSError as error:
            place = f": {error.filename}" if error.filename else ""
            print(f"cordwood: {error.strerror or error}{place}", file=sys.stderr)
            code = EXIT_REQUEST
        raise typer.Exit(code or EXIT_OK)

    return run


def main() -> None:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    code: object = EXIT_OUR_FAULT
    try:
        app(prog_name="cordwood")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. Python would now take the compiler behind the kernels apart, for a tenth of a second.
    os._exit(code if isinstance(code, int) else EXIT_OK if code is None else EXIT_OUR_FAULT)


if __name__ == "__main__":
    main()
