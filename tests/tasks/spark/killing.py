"""Cleans by many tasks, one of which carries out an order in a given stage: it kills a process, or damages a blob.

test      gives an order, requests a clean from a driver
driver    a process of its own, `python -m tests.tasks.spark.killing MASTER FOLDER`: reads requests, a line of JSON each
worker    runs `tests.tasks.spark.killing_daemon`; there the functions of stages look for an order before and after
          their work; a file per moment lets exactly one task carry it out
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from cordwood.cleaning.engine import exchange, stages, task
from cordwood.cleaning.proof import prove
from cordwood.cleaning.rules import key_table
from cordwood.storage.log.segment import Segment
from cordwood.tasks import tasks as tasks_module
from tests.cleaning.modes import every_batch
from tests.commands.killing import WAIT_SECONDS, processes, wait_for
from tests.knobs import scaled

# ---- cases -----------------------------------------------------------------------------------------------------------

# The kills, losses and flips in each stage of a clean by many tasks, and their count after a run.
#
# A run takes the first cases of a list: a few of each kind, or as many as its effort allows.

Stage = Literal["headers", "scan", "merge", "rewrite", "check", "compare", "conclude", "judge"]
#: worker: a Python worker. executor: the Java process that started it, with a local master that of the driver; or the
#: server of a pool.
#: driver: the process that runs the clean. lost, flipped: a blob.
Kind = Literal["worker", "executor", "driver", "lost", "flipped"]
Moment = Literal["before", "after"]
#: Lost data: a blob of a scan or a merge, or a file of a proof.
Data = Literal["", "scan", "merge", "proof"]

STAGES: tuple[Stage, ...] = get_args(Stage)
#: Those of the proof, which only a clean in place has.
PROOF: tuple[Stage, ...] = STAGES[5:]


@dataclass(frozen=True, slots=True)
class Case:
    """A clean, and its fault.

    Attributes:
        kind: kind of fault.
        stage: stage of the task that causes it.
        in_place: whether the directory itself is cleaned, and not a copy of it.
        moment: before or after the work of the task.
        number: number of tasks that reach this point earlier.
        data: data that is lost or flipped.
    """

    kind: Kind
    stage: Stage
    in_place: bool = False
    moment: Moment = "before"
    number: int = 0
    data: Data = ""


def _kills(kind: Kind, *, all_: bool) -> Iterator[Case]:
    """Kills of a process: in every stage, for a copy and in place, before and after the work of a task."""
    for turn, stage in enumerate(STAGES):
        for in_place in (False, True) if stage not in PROOF else (True,):
            moments: tuple[Moment, ...] = get_args(Moment)
            for moment in moments if all_ else moments[(in_place + turn) % 2 :][:1]:
                # Two partitions are concluded.
                later = 1 if stage in PROOF else 2
                yield Case(kind, stage, in_place, moment, 0 if moment == "before" else later)


#: Where blobs are lost: just after they were written, just before they are read, and when all have read them.
_BLOBS: tuple[tuple[Stage, Moment, Data], ...] = (
    ("scan", "after", "scan"),
    ("merge", "before", "scan"),
    ("merge", "after", "merge"),
    ("rewrite", "before", "scan"),
    ("rewrite", "before", "merge"),
    ("check", "before", "scan"),
    ("compare", "after", "proof"),
    ("conclude", "before", "proof"),
    ("judge", "before", "proof"),
)


def _losses(*, all_: bool) -> Iterator[Case]:
    for turn, (stage, moment, data) in enumerate(_BLOBS):
        for at, kind in enumerate(get_args(Kind)[3:]):
            both = (True,) if stage in PROOF else (False, True)
            for in_place in both if all_ or stage in PROOF else ((turn + at) % 2 == 0,):
                yield Case(kind, stage, in_place, moment, 0, data)


#: Those of every run.
FEW_LOCAL = (
    Case("worker", "scan", moment="after", number=2),
    Case("lost", "merge", data="scan"),
    Case("flipped", "rewrite", in_place=True, data="merge"),
    Case("driver", "rewrite", in_place=True),
    Case("worker", "compare", in_place=True, number=1),
    Case("flipped", "judge", in_place=True, data="proof"),
    Case("driver", "judge", in_place=True),
)
FEW_CLUSTER = (
    Case("worker", "merge"),
    Case("executor", "rewrite", in_place=True),
    Case("driver", "scan", in_place=True),
)


def chosen(few: tuple[Case, ...], *, all_: bool) -> list[Case]:
    """The cases of this run.

    Args:
        few: cases of every run.
        all_: whether to choose among all other cases, or only half of them.
    """
    kinds: tuple[Kind, ...] = get_args(Kind)
    others = [*_kills(kinds[0], all_=all_), *(one for kind in kinds[1:3] for one in _kills(kind, all_=False))]
    cases = list(dict.fromkeys([*few, *others, *_losses(all_=all_)]))
    return cases[: scaled(len(few), len(cases))]


# ---- counts ----------------------------------------------------------------------------------------------------------


def table(master: str, cases: list[Case]) -> list[str]:
    """Number of cases of each stage and kind."""
    count = Counter((case.stage, case.kind) for case in cases)
    lines = [f"kills in stages on {master}: {len(cases)}, each with the same result as without"]
    for stage in STAGES:
        some = [f"{kind} {count[stage, kind]}" for kind in get_args(Kind) if count[stage, kind]]
        if some:
            lines.append(f"  {stage:<8} {' · '.join(some)}")
    return lines


ROOT = Path(__file__).parents[3]
DAEMON = "tests.tasks.spark.killing_daemon"
#: In the place of a master: a pool of processes.
HERE = "here"
#: Environment variable of tasks: the folder of orders.
_ORDERS = "KILLING_ORDERS"
#: Maximum wait of a task for its end, once it has killed the driver.
_ENDS_SECONDS = 60
#: Tasks without progress for this long are given up.
_TASK_TIMEOUT = 120


# ---- orders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """An order for a task.

    Attributes:
        case: the fault, and its stage.
        driver: the process that runs the clean.
        number: number of the order.
    """

    case: Case
    driver: int
    number: int


class Orders:
    """A folder with the order that is in force, if there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "order.json"

    def give(self, order: Order) -> None:
        """Put an order in force."""
        with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
            json.dump(asdict(order), file)
        os.rename(file.name, self._file)

    def withdraw(self) -> None:
        """Let tasks only do their work."""
        self._file.unlink(missing_ok=True)

    def done(self, number: int) -> str:
        """The action of the task that carried out an order, or an empty string."""
        try:
            return (self._folder / f"{number}.done").read_text()
        except FileNotFoundError:
            return ""

    def taken(self, stage: Stage, moment: Moment) -> Order | None:
        """Return the order if the calling task has to carry it out."""
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        order = Order(Case(**found["case"]), found["driver"], found["number"])
        if (order.case.stage, order.case.moment) != (stage, moment):
            return None
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                (self._folder / f"{order.number}.{number}").touch(exist_ok=False)
                return order if number == order.case.number else None
        return None

    def say(self, order: Order, what: str) -> None:
        """Record the next action."""
        (self._folder / f"{order.number}.done").write_text(what)


# ---- in a worker -----------------------------------------------------------------------------------------------------

#: The functions of tasks, by stage.
_FUNCTIONS: dict[Stage, tuple[tuple[ModuleType, str], ...]] = {
    "headers": ((stages, "transactional_batches"),),
    "scan": ((exchange, "scan_into_blob"),),
    "merge": ((exchange, "merge_blobs"),),
    "rewrite": ((task, "clean_task"),),
    "check": ((tasks_module, "check_output"),),
    "compare": ((prove, "compare"),),
    "conclude": ((prove, "conclude"),),
    "judge": ((prove, "judge"),),
}


def plant() -> None:
    """Let the functions of tasks in this process carry out orders; and proofs of small logs take many tasks."""
    prove.HERE_BYTES, prove.RANGE_BYTES = 0, 1
    for stage, places in _FUNCTIONS.items():
        (found,) = {getattr(module, name) for module, name in places}
        planted = _ordered(stage, found)
        for module, name in places:
            setattr(module, name, planted)


def _ordered(stage: Stage, do: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(do)
    def planted(*arguments: Any, **options: Any) -> Any:
        _obey(stage, "before", arguments)
        found = do(*arguments, **options)
        _obey(stage, "after", arguments)
        return found

    return planted


def _obey(stage: Stage, moment: Moment, arguments: tuple[Any, ...]) -> None:
    orders = Orders(Path(os.environ[_ORDERS]))
    order = orders.taken(stage, moment)
    if order is None:
        return
    case = order.case
    if case.kind in ("worker", "executor", "driver"):
        own = os.getpid()
        starter, java = _parent(own), _parent(_parent(own))
        in_pool = java == order.driver
        victims = {"worker": own, "executor": starter if in_pool else java, "driver": order.driver}
        name = Path(f"/proc/{victims[case.kind]}/comm").read_text().strip()
        assert (name == "java") == (case.kind == "executor" and not in_pool), name
        orders.say(order, f"killed {name}")
        os.kill(victims[case.kind], signal.SIGKILL)
        if case.kind == "driver":
            # Java, or the server of the pool, ends this process once it notices that the driver has ended.
            time.sleep(_ENDS_SECONDS)
        os._exit(1)
    else:
        path = _blob(case, arguments)
        if case.kind == "lost":
            path.unlink()
        else:
            # A rewrite always reads the end of the directory; a merge always reads everything before it.
            position = path.stat().st_size - 1 if case.stage == "rewrite" else path.stat().st_size // 3
            with open(path, "r+b") as file:
                byte = file.read()[position]
                file.seek(position)
                file.write(bytes([byte ^ 1]))
        orders.say(order, f"{case.kind} {path.name}")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def _blob(case: Case, arguments: tuple[Any, ...]) -> Path:
    """The blob that a task has just written or is about to read."""
    match case.stage:
        case "scan":
            folder = Path(arguments[1].path)
        case "merge":
            folder = Path(arguments[0].folder.path)
        case "compare" | "conclude" | "judge":
            return max(Path(arguments[0].scratch.path).iterdir(), key=lambda path: path.stat().st_size)
        case _:
            own = Path(next(iter(arguments[0].scanned.outcomes.runs.values())).blob.path)
            if case.data == "scan":
                return own
            folder = own.parent
    # Another task may have just begun to write one.
    return max(folder.glob(f"*.{case.data}"), key=lambda path: path.stat().st_size)


# ---- a driver --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A clean.

    Attributes:
        logs: the log directory.
        output: path of the copy; None to clean in place.
        staged: whether it is cleaned by many tasks.
        own_session: whether the clean starts a session of its own, and not one for many cleans.
        verify: whether a clean in place is proved. The caller compares all bytes, which takes less time.
    """

    logs: str
    output: str | None
    staged: bool = True
    own_session: bool = False
    verify: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a clean.

    Attributes:
        error: error message, or empty.
        fates: fates of the partitions.
        staged: number of partitions that were cleaned by many tasks.
        notes: notes in the result.
    """

    error: str = ""
    fates: tuple[str, ...] = ()
    staged: int = 0
    notes: tuple[str, ...] = ()


class Driver:
    """A process that cleans.

    Args:
        master: URL of Spark's master.
        orders: the folder of orders.
        folder: folder for temporary files and for the process's output.
    """

    def __init__(self, master: str, orders: Path, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "driver.log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TMPDIR": str(self.temporary),
            "OPENBLAS_NUM_THREADS": "1",
            _ORDERS: str(orders),
        }
        command = [sys.executable, "-m", "tests.tasks.spark.killing", master]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def clean(self, request: Request) -> Answer | None:
        """Clean; return None if the process was killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asdict(request)), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            assert self._process.wait() == -signal.SIGKILL, self._log.read_text()
            return None
        found = json.loads(line)
        return Answer(found["error"], tuple(found["fates"]), found["staged"], tuple(found["notes"]))

    def end(self) -> None:
        """Let it end, unless it was killed, and wait for the end of all processes that it started."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=WAIT_SECONDS)
        assert wait_for(lambda: not processes(self.pid)), "Spark outlives its driver"


#: For all cleans: a group for each segment.
_OPTIONS: dict[str, Any] = {
    "overrides": ["cleanup.policy=compact", "internal.segment.bytes=300"],
    "high_watermark": "end",
    "now_ms": 1_900_000_000_000,
    "single_copy": True,
    "ignore_ratio": True,
    "task_timeout": _TASK_TIMEOUT,
}


def main() -> None:
    """Clean as requested until the input ends."""
    from cordwood.tasks import tasks as jobs
    from cordwood.tasks.spark import session, settings

    master = sys.argv[1]
    if master == HERE:
        plant()  # workers are forks of this process
    settings.SETTINGS = {
        **settings.SETTINGS,
        "spark.python.daemon.module": DAEMON,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        f"spark.executorEnv.{_ORDERS}": os.environ[_ORDERS],
    }
    is_staged, went = _stage_small_logs(jobs)
    with contextlib.ExitStack() as running:
        spark = None
        for line in sys.stdin:
            request = Request(**json.loads(line))
            is_staged[0] = request.staged
            went.clear()
            if master == HERE:
                pass
            elif request.own_session:
                running.close()
                spark = None
            elif spark is None:
                spark = running.enter_context(session.session(master=master))
            where = {"engine": HERE} if master == HERE else {"master": master} if spark is None else {"spark": spark}
            answer = _clean(request, where)
            print(json.dumps(asdict(answer) | {"staged": len(went)}), flush=True)


def _clean(request: Request, where: dict[str, Any]) -> Answer:
    from cordwood.api import clean, clean_in_place

    options = {**where, **_OPTIONS}
    try:
        if request.output is None:
            result = clean_in_place(request.logs, verify=request.verify, **options)
        else:
            result = clean(request.logs, output=request.output, **options)
    except Exception as error:
        return Answer(f"{type(error).__name__}: {error}")
    return Answer(fates=tuple(one.fate for one in result.partitions), notes=tuple(result.notes))


def _stage_small_logs(jobs: ModuleType) -> tuple[list[bool], list[str]]:
    """Let logs of some kilobytes go through all stages, in many tasks of each.

    Returns:
        whether to do it, which may be changed; and the paths of partitions that were staged, which are added.
    """
    wanted, went, once = [True], list[str](), stages.clean_staged

    def noted(fs: Any, tasks: Any, *arguments: Any, **options: Any) -> Any:
        went.extend(task.path for task in tasks)
        return once(fs, tasks, *arguments, **options)

    def cut(segment: Segment, run_bytes: int) -> list[int]:
        return [0] if run_bytes > 1 << 40 else every_batch(segment, 0)[::40]

    changed: dict[ModuleType, dict[str, object]] = {
        jobs: {"clean_staged": noted, "is_staged": lambda *_: wanted[0]},
        stages: {"cut_positions": cut, "RANGES": 16},
        key_table: {"CHUNK_RECORDS": 64},
        exchange: {"MERGE_ENTRIES": 1},
        prove: {"WHOLE_BYTES": -1},
    }
    for module, values in changed.items():
        for name, value in values.items():
            setattr(module, name, value)
    return wanted, went


if __name__ == "__main__":
    main()
