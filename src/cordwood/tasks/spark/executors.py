"""Check a user's session: its Spark is new enough, its workers have Cordwood, and each executor can clean these logs.

Executors of a user's session, or on a cluster, may be on other machines, may run as another user, and may have another
Python, or no Cordwood. Tasks would then fail halfway or, worse, clean other files that have the same names as this
machine's. So each executor gets a first task, which checks this; executors that fail it are rejected with a reason.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cordwood.common.errors import RequestError
from cordwood.fs.base import TargetStore
from cordwood.storage.log.files import write_file
from cordwood.tasks.spark import probe
from cordwood.tasks.spark.settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ---- sessions --------------------------------------------------------------------------------------------------------

NOT_INSTALLED = "This runs on Spark, which is not installed:  pip install 'cordwood[spark]'"
_SPARK_MIN = (4, 3)
_LOOK_SECONDS = 60
_LOOK = (
    "import importlib.util as u, sys; print('{}.{}'.format(*sys.version_info[:2]), u.find_spec('cordwood') is not None)"
)
#: The workers' Python if PYSPARK_PYTHON is not set.
_DEFAULT_PYTHON = "python3"


def check_version(version: str) -> None:
    """Raise RequestError if Spark is too old.

    Raises:
        RequestError: the version is below 4.3.
    """
    if tuple(map(int, re.findall("[0-9]+", version)[:2])) < _SPARK_MIN:
        raise RequestError(f"This is Spark {version}, and Cordwood needs 4.3 or newer:  pip install 'cordwood[spark]'")


def prepare_session(spark: SparkSession) -> None:
    """Reject a user's session that cannot run tasks of Cordwood; let a local one run them in this process's Python.

    Spark's workers run `python3` from the path unless PYSPARK_PYTHON is set. In a virtual environment that is not
    activated this is another Python, without Cordwood. Spark reads the choice from the context at each query, so a
    local session can still get this process's Python. If the user chose a Python, it is kept, or rejected.

    Raises:
        RequestError: the session is too old; or its workers run a Python that the user chose and that has no Cordwood.
    """
    check_version(spark.version)
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the workers belong to the server
        return
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):  # on a cluster, `executors` checks the workers
        return
    if context.pythonExec == _DEFAULT_PYTHON and sys.executable:
        context.pythonExec = sys.executable
    check_python(context.pythonExec)


def check_python(python: str) -> None:
    """Raise RequestError if a Python for workers has another version, or no Cordwood; see `prepare_session`."""
    path = shutil.which(python)
    if path == sys.executable:
        return
    fault = "which does not exist"
    if path is not None:
        look = [path, "-c", _LOOK]
        found = subprocess.run(look, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False).stdout.split()
        mine = "{}.{}".format(*sys.version_info[:2])
        if found == [mine, "True"]:
            return
        is_other = found[:1] not in ([], [mine])
        fault = f"which is Python {found[0]}; this process runs {mine}" if is_other else "which has no Cordwood"
    raise RequestError(
        f"Spark's workers run {path or python}, {fault}. PYSPARK_PYTHON chose it. Unset that, or set it to the Python "
        f"of this process before the session starts:  export PYSPARK_PYTHON={sys.executable}"
    )


#: Number of check tasks per core, and duration of each in seconds, so that every executor gets at least one.
_TASKS_PER_CORE = 2
_SECONDS = 0.2
#: Maximum number of directories to compare.
_PATHS_MAX = 200
_DAEMON = "spark.python.daemon.module"
#: Application ids of local sessions that passed.
_passed: set[str] = set()
#: Patterns in Spark's errors about workers that do not start, each with the text to report.
_KNOWN = (
    (r"PYTHON_VERSION_MISMATCH\] ([^\n]*)", "{0}"),
    (r"No module named '(cordwood[^']*)'", "Cordwood is not installed there"),
    (r"No module named '([^']*)'", "{0} is not installed there"),
    (r"((?:ModuleNotFound|Import)Error: [^\n]*)", "{0}"),
    (r'Cannot run program "([^"]*)"', "there is no Python {0}"),
)
_ADVICE = (
    "Give the executors this environment: `cordwood pack` makes an archive of it and shows how to use it. Or install "
    "the same versions there, and set PYSPARK_PYTHON to that Python before the session starts"
)


class Executors(Protocol):
    """The executors of a session."""

    @property
    def cores(self) -> int:
        """Number of tasks that the executors run concurrently."""
        ...

    @property
    def is_on_this_machine(self) -> bool:
        """Whether all of them are on this machine."""
        ...

    def setting(self, name: str) -> str:
        """Return the value of a Spark setting, or an empty text if it is not set."""
        ...

    def ask(self, question: Callable[[], str], count: int) -> list[str]:
        """Run a question in `count` tasks and return the answers; `probe`, pickled by value, turns it into a task."""
        ...


def check_executors(
    spark: Executors, fs: TargetStore | None, folder: str, paths: Sequence[str], needs: str = ""
) -> None:
    """Check the environment and files of each executor, unless the session is local and our own.

    Args:
        fs: the file system of the folder; None if tasks need no folder.
        folder: folder of this run, in which tasks write.
        paths: partitions that tasks read from disks; an object store needs no comparison.
        needs: advice for the message if an executor does not see the folder.

    Raises:
        RequestError: an executor cannot run the tasks; the message contains its host, the reason and advice.
    """
    is_local = spark.is_on_this_machine
    if is_local and spark.setting(_DAEMON) == SETTINGS[_DAEMON]:
        return
    application = spark.setting("spark.app.id")
    if is_local and application in _passed:
        return
    if is_local:  # the same machine, so the same files
        fs, paths = None, ()
    elif fs is not None and fs.path_on_disk(folder) is None:  # all machines see the same object store
        fs = None
    paths = paths[:_PATHS_MAX]
    file, word = "", ""
    if fs is not None:
        file, word = f"{folder}/probe-{secrets.token_hex(4)}", f"probe {secrets.token_hex(16)}"
        write_file(fs, file, word.encode())
    try:
        answers = _ask(spark, file, paths, wait=not is_local)
    finally:
        if fs is not None:
            fs.unlink(file)
    here = probe.environment()
    known = {path: probe.identity(path) for path in paths}
    for answer in answers:
        for fault, advice in faults(answer, here, known, word, folder, needs):
            raise RequestError(f"The executor on {answer['host']} cannot be used: {fault}. {advice}")
    if is_local and application:
        _passed.add(application)


def _ask(spark: Executors, file: str, paths: Sequence[str], *, wait: bool) -> list[Any]:
    from pyspark import cloudpickle

    count = spark.cores * _TASKS_PER_CORE if wait else 1
    # Pickle the module by value, as workers may not have it installed.
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        question = functools.partial(probe.answer, file, list(paths), _SECONDS if wait else 0)
        return [json.loads(answer) for answer in spark.ask(question, count)]
    except Exception as error:
        said = str(error)
        for pattern, words in _KNOWN:
            if match := re.search(pattern, said):
                fault = words.format(match[1].rstrip("."))
                raise RequestError(f"The Python workers of Spark cannot be used: {fault}. {_ADVICE}") from error
        raise RequestError(f"The Python workers of Spark cannot be used: {said.strip()}\n{_ADVICE}") from error
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def faults(
    answer: Mapping[str, Any], here: Mapping[str, Any], known: Mapping[str, str], word: str, folder: str, needs: str
) -> Iterator[tuple[str, str]]:
    """Yield the faults of an executor, each with advice.

    Args:
        answer: the worker's answer; see `probe.answer`.
        here: the environment of this process.
        known: the identities of directories as this process sees them.
        word: content of the probe file.
        needs: advice for the message if an executor does not see the folder.
    """
    for name, version in here["versions"].items():
        found = answer["versions"][name]
        if found is None and version is not None:
            yield f"{name} is not installed for its Python, {answer['executable']}", _ADVICE
        elif found != version:
            yield f"it has {name} {found}, and this process has {version}", _ADVICE
    if (word or known) and answer["uid"] != here["uid"]:
        what = f"it runs as the user with number {answer['uid']}, and this process as {here['uid']}"
        yield what, "Its files would belong to another user. Start the workers of Spark as this user"
    if answer["file"] != word:
        what = f"it does not find a file that this process has written to {folder}: {answer['file'][:80] or 'nothing'}"
        yield what, needs or "All machines need the same directories at the same paths, such as those of a network disk"
    for path, identity in known.items():
        if answer["paths"][path] != identity:
            found = answer["paths"][path]
            why = "has other segments" if re.fullmatch("[0-9a-f]{64}", found) else f"cannot be read: {found}"
            what = f"{posixpath.basename(path)} at {path} {why} there"
            yield what, "All machines need the same directories at the same paths, such as those of a network disk"
