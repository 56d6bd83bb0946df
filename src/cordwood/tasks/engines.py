"""Chooses the engine that runs a command's tasks: Spark, or a pool of processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, ClassVar

from cordwood.common.arguments import Option
from cordwood.common.errors import RequestError
from cordwood.fs.machine import local_cores
from cordwood.tasks.spark.settings import LOCAL_MASTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.tasks.runner import Runner

HERE, SPARK = "here", "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options that choose the engine of a command's tasks."""

    PANEL: ClassVar[str] = "How it runs"

    engine: Annotated[
        str | None,
        Option(
            "What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java. Default: "
            "spark if it is installed, else here.",
            metavar="here|spark",
        ),
    ] = None

    master: Annotated[str, Option("Spark master URL of a new session. Default: this machine.", metavar="URL")] = (
        LOCAL_MASTER
    )

    def __post_init__(self) -> None:
        """Raise RequestError unless the engine is `here` or `spark`."""
        if self.engine not in (None, HERE, SPARK):
            raise RequestError(f"--engine {self.engine}: give here or spark")

    def where(self, spark: SparkSession | None = None) -> Where:
        """Return the requested engine."""
        return Where(engine=self.engine, spark=spark, master=self.master)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The requested engine.

    Attributes:
        engine: here or spark; None: Spark if a session, master or archive is given, or Spark is installed; else here.
        spark: a session to use, which is left running, or None for a new one.
    """

    engine: str | None = None
    spark: SparkSession | None = None
    master: str = LOCAL_MASTER
    archive: str | None = None

    def __post_init__(self) -> None:
        """Raise RequestError for Spark's options with another engine."""
        if self.engine == HERE and self._names_spark:
            raise RequestError("A session, --master and --archive are Spark's; --engine here runs without Spark")

    @property
    def _names_spark(self) -> bool:
        return self.spark is not None or self.master != LOCAL_MASTER or self.archive is not None

    @property
    def is_spark(self) -> bool:
        """Whether Spark runs the tasks."""
        if self.engine is not None:
            return self.engine == SPARK
        return self._names_spark or find_spec("pyspark") is not None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether all tasks run on this machine."""
        from cordwood.tasks.spark.session import runs_here

        return not self.is_spark or runs_here(self.spark, self.master)

    def begun(self) -> AbstractContextManager[None]:
        """Start Spark early in the background, for `start` in the block; if it is not used, it ends with the block."""
        if not self.is_spark or self.spark is not None:
            return nullcontext()
        from cordwood.tasks.spark.session import begun

        return begun(self.master, self.archive)

    def start(self, sizes: Sequence[int] = ()) -> AbstractContextManager[Runner]:
        """Start the engine; see `tasks.runner.Start`."""
        return _started(self, sizes)


@contextmanager
def _started(where: Where, sizes: Sequence[int]) -> Iterator[Runner]:
    # This import loads kernels, while Java starts.
    from cordwood.cleaning.engine.division import tasks_at_once

    tasks = tasks_at_once(sizes, local_cores())
    # Import only the engine in use; planning needs neither.
    if where.is_spark:
        from cordwood.tasks.spark.runner import running_on_spark

        with running_on_spark(where.spark, master=where.master, archive=where.archive, tasks=tasks) as runner:
            yield runner
    else:
        from cordwood.tasks.pool.runner import running_in_pool

        with running_in_pool(tasks) as runner:
            yield runner
