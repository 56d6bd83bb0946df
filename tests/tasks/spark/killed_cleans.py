"""Cleans with a killed process or lost data, and their expected results."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cordwood.cleaning.engine.results import Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import leftovers
from cordwood.storage.formats.filenames import WORK_FOLDER
from tests.commands.killing import wait_for
from tests.tasks.spark.killing import PROOF, Answer, Case, Driver, Order, Orders, Request
from tests.tasks.spark.logs import random_log

LOCAL = "local[2,4]"
PARTITIONS = 2
#: A name, its contents (None for a directory), and its modification time.
Tree = dict[str, tuple[bytes | None, int]]


def tree(folder: Path) -> Tree:
    """All there is in a folder, but the file that a clean in place locks."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


def contents(folder: Path) -> dict[str, bytes | None]:
    return {name: data for name, (data, _) in tree(folder).items()}


def without_work_folders(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {name: data for name, data in found.items() if WORK_FOLDER not in Path(name).parts}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@dataclass
class Cleans:
    """Cleans on a master, each of a new copy of the same log directory.

    Attributes:
        master: of Spark.
        folder: for all that is made.
        executors: processes of executors that are not a driver's.
        number: of cases so far.
    """

    master: str
    folder: Path
    executors: Callable[[], list[int]]
    number: int = 0

    def __post_init__(self) -> None:
        self.logs, orders = self.folder / "logs", self.folder / "orders"
        for number in range(PARTITIONS):
            random_log(self.logs / f"t-{number}", number, segments=4)
        orders.mkdir()
        self.orders = Orders(orders)
        self._orders_folder = orders
        self._numbers = itertools.count()
        self._driver: Driver | None = None

    def __enter__(self) -> Cleans:
        self._expected = {
            in_place: self._expected_of(self._request(self.folder / f"expected-{in_place:d}", in_place=in_place))
            for in_place in (False, True)
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def driver(self) -> Driver:
        """The process that cleans; a new one if the last was killed."""
        if self._driver is None:
            self._driver = Driver(self.master, self._orders_folder, self.folder / f"driver-{next(self._numbers)}")
        return self._driver

    def _end(self, *, is_killed: bool = False) -> None:
        """End the driver, and see that it leaves no temporary files."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.end()
            assert wait_for(lambda: not self.executors()), "executors outlive their driver"
            # Empty folders may be left, and the socket of a task; and after a killed driver, its proof's files.
            some = [path for path in driver.temporary.rglob("*") if path.is_file()]
            left = [str(path) for path in some if not (is_killed and "cordwood-proof-" in str(path))]
            assert not left, left

    def _request(self, folder: Path, *, in_place: bool) -> Request:
        """A clean of a new copy of the logs."""
        folder.mkdir()
        shutil.copytree(self.logs, folder / "logs")
        return Request(str(folder / "logs"), None if in_place else str(folder / "copy"))

    def _expected_of(self, request: Request) -> dict[str, bytes | None]:
        """The output of one task for the logs."""
        answer = self.driver.clean(replace(request, staged=False))
        assert answer == Answer(fates=(Fate.CLEANED,) * PARTITIONS), answer
        return contents(Path(request.output or request.logs))

    def run(self, case: Case) -> None:
        """Run a clean with a fault; and a second clean if it fails."""
        self.number += 1
        folder = self.folder / f"case-{self.number}"
        request = replace(self._request(folder, in_place=case.in_place), verify=case.stage in PROOF)
        before = tree(folder / "logs")
        # A local master has one Java process, which ends the session when it dies.
        ends_session = case.kind == "executor" and self.master == LOCAL
        self.orders.give(Order(case, self.driver.pid, self.number))
        answer = self.driver.clean(replace(request, own_session=ends_session))
        self.orders.withdraw()
        assert self.orders.done(self.number), f"nothing happened: {answer}"
        if case.kind == "driver":
            assert answer is None, "the driver is alive"
            self._end(is_killed=True)
        elif ends_session:
            assert answer is not None and "Spark's Java process ended in the middle" in answer.error, answer
            assert names(folder) == {"logs"}
            self._check_untouched(case, folder, before, exactly=True)
        else:
            assert answer is not None
            self._check(case, folder, answer, before)
            return
        self._check_untouched(case, folder, before, exactly=False)
        again = self.driver.clean(request)
        assert again is not None
        self._check(case, folder, again, before)

    def _check_untouched(self, case: Case, folder: Path, before: Tree, *, exactly: bool) -> None:
        """Check that a failed clean changed no file."""
        assert not (folder / "copy").exists()
        if case.in_place:
            found = contents(folder / "logs")
            assert (found if exactly else without_work_folders(found)) == {
                name: data for name, (data, _) in before.items()
            }
        else:
            assert tree(folder / "logs") == before

    def _check(self, case: Case, folder: Path, answer: Answer, before: Tree) -> None:
        """Check that a clean had the same result as without a fault."""
        assert answer.error == ""
        assert answer.fates == (Fate.CLEANED,) * PARTITIONS
        assert answer.staged == PARTITIONS
        if case.in_place:
            assert contents(folder / "logs") == self._expected[True]
            assert names(folder) == {"logs"}
            return
        assert contents(folder / "copy") == self._expected[False]
        assert tree(folder / "logs") == before, "the source is touched"
        # Only a killed driver leaves its work folder; the next clean names it.
        left = leftovers(PosixFileSystem(), str(folder / "copy"))
        assert len(left) == (case.kind == "driver")
        assert names(folder) == {"copy", "logs", *(os.path.basename(path) for path in left)}
        assert all(any(path in note for note in answer.notes) for path in left)


def run_all(cleans: Cleans, cases: list[Case]) -> None:
    for case in cases:
        print(f"{cleans.number + 1} of {len(cases)}: {case}", flush=True)
        cleans.run(case)
