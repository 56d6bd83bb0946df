"""Power cuts: every state that one could leave, the number of checked states, and their line after a run."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from cordwood.testing.memory import MemoryFileSystem, every_cut
from cordwood.testing.memory_journal import at_random, keep_all, lose_all
from tests import knobs
from tests.fs.trees import Tree, tree

PROPERTY = "power cuts"
#: Largest number of unsynced changes for which every subset is tried.
EXHAUSTIVE = 12
#: The long tests cut before every so-manieth operation.
EVERY = knobs.step(48)

State = frozenset[tuple[str, int]]


@dataclass
class Cuts:
    """The states that power cuts during an act can leave; each distinct state is returned once.

    A state that was right at first may be a loss later: `known` returns the promises until now.

    Attributes:
        start: the file system before the act, all of it durable.
        act: changes the file system; the power is cut after each of its operations.
        sampled: number of states per cut where there are too many to try all.
        seed: seed of these samples.
        subsets_max: largest number of changes for which every subset is tried.
        every: distance in operations between two cuts, besides the cuts that `always` adds.
        always: whether the power is cut in this state in any case.
        known: returns the promises made to the act until now; states with different promises are distinct.
        states: number of states.
        different: number of states that differ in names or files.
    """

    start: MemoryFileSystem
    act: Callable[[MemoryFileSystem], object]
    sampled: int = 200
    seed: int = 1
    subsets_max: int = EXHAUSTIVE
    every: int = 1
    always: Callable[[MemoryFileSystem], bool] = lambda _: False
    known: Callable[[], Hashable] = lambda: None
    states: int = field(default=0, init=False)
    different: int = field(default=0, init=False)
    _seen: set[tuple[State, Hashable]] = field(default_factory=set, init=False)

    def __iter__(self) -> Iterator[MemoryFileSystem]:
        source = random.Random(self.seed)
        cuts = every_cut(lambda: self.start.crash(keep_all), self.act)
        for fs in (fs for number, fs in enumerate(cuts) if number % self.every == 0 or self.always(fs)):
            for after in self._left(fs, source):
                self.states += 1
                if (state := (names_of(after), self.known())) not in self._seen:
                    self._seen.add(state)
                    self.different += 1
                    yield after

    def _left(self, fs: MemoryFileSystem, source: random.Random) -> Iterable[MemoryFileSystem]:
        if len(fs.pending) <= self.subsets_max:
            return fs.crashes()
        some = (fs.crash(at_random(source)) for _ in range(self.sampled))
        return itertools.chain((fs.crash(keep_all), fs.crash(lose_all)), some)

    def tell(self, record_property: Callable[[str, object], None], what: str) -> None:
        """Hand the counts over to the summary at the end of the run."""
        record_property(PROPERTY, [what, self.states, self.different])


@dataclass
class CutsDuring:
    """Checks the states that power cuts during an act can leave, each distinct state once; the act runs only once.

    Attributes:
        look: called with each state.
        sampled: states per cut, besides all and nothing kept, where there are too many subsets of unsynced changes.
        subsets_max: maximum number of unsynced changes for which all subsets are checked.
        every: distance in operations between two cuts.
        seed: seed of the samples.
    """

    look: Callable[[MemoryFileSystem], None]
    sampled: int
    subsets_max: int
    every: int = 1
    seed: int = 1
    states: int = 0
    different: int = 0
    operations: int = 0
    _seen: set[State] = field(default_factory=set)
    _failed: BaseException | None = None

    def during(self, act: Callable[[MemoryFileSystem], object], start: MemoryFileSystem) -> None:
        """Look at all that power cuts can leave; the last is when all is done."""
        fs = durable(start)
        source = random.Random(self.seed)
        fs.operations = Heard(lambda _: self._cut(fs, source))
        with contextlib.suppress(_Failed):
            act(fs)
            self._cut(fs, source, last=True)
        if self._failed is not None:
            raise self._failed

    def _cut(self, fs: MemoryFileSystem, source: random.Random, *, last: bool = False) -> None:
        if self._failed is not None:
            raise _Failed
        self.operations += 1
        if self.operations % self.every and not last:
            return
        if len(fs.pending) <= self.subsets_max:
            left = fs.crashes()
        else:
            some = (fs.crash(at_random(source)) for _ in range(self.sampled))
            left = itertools.chain((fs.crash(keep_all), fs.crash(lose_all)), some)
        for after in left:
            self.states += 1
            state = names_of(after)
            if state not in self._seen:
                self._seen.add(state)
                self.different += 1
                self._look(after, fs)

    def _look(self, after: MemoryFileSystem, fs: MemoryFileSystem) -> None:
        try:
            self.look(after)
        except BaseException as error:
            error.add_note(f"after: {' · '.join(fs.operations[-3:])}")
            self._failed = error
            raise _Failed from error


class _Failed(BaseException):
    """A check failed. No handler of the clean may catch it as a failure of its own."""


class Heard(list[str]):
    """Operations; each is announced before it is done."""

    def __init__(self, before: Callable[[str], None]) -> None:
        """`before` is called with each operation."""
        self._before = before

    def append(self, text: str) -> None:
        self._before(text)
        super().append(text)


def names_of(fs: MemoryFileSystem) -> State:
    """All files as a value; see `names_of_tree`."""
    return names_of_tree(tree(fs))


def names_of_tree(files: Tree) -> State:
    """Files as a value: paths, and a number for each file's contents."""
    return frozenset((path, hash(data)) for path, data in files.items())


def durable(fs: MemoryFileSystem) -> MemoryFileSystem:
    """A copy with all changes on disk."""
    return fs.crash(keep_all)


def lines_for(reporter: pytest.TerminalReporter) -> list[str]:
    """The summary of all tests that this run has finished, in all of its processes."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    found: dict[str, tuple[int, int]] = {}
    for report in reports:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == PROPERTY:
                what, states, different = value
                before = found.get(what, (0, 0))
                found[what] = before[0] + states, before[1] + different
    return [
        f"power cuts: {what}: {states:,} states, {different:,} of them different"
        for what, (states, different) in sorted(found.items())
    ]
