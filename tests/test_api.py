"""The public names of `import cordwood`."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import cordwood
from cordwood import api
from cordwood.cleaning.rules.plan import Reason
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.commands.options import (
    AbortOptions,
    BrokersOptions,
    ClusterOptions,
    CompareOptions,
    CopyOptions,
    EraseCheckOptions,
    GetOptions,
    GroupOptions,
    InPlaceOptions,
    ListOptions,
    PlanOptions,
    TableFileOptions,
    TableOptions,
    TaskOptions,
    TransactionOptions,
    VerifyOptions,
    WhyOptions,
)
from cordwood.common.arguments import checked, option_fields
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import Column, html_table
from cordwood.common.types import TopicPartition
from cordwood.simulation.options import ExplainOptions, SimulateOptions
from cordwood.testing.memory import MemoryFileSystem
from tests.fixtures import fixture

PYTHON_PAGE = Path(__file__).parents[1] / "docs" / "python.md"


def test_public_names_are_those_in_the_docs() -> None:
    section = PYTHON_PAGE.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    documented: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, what = line.strip("| ").split(" | ")
            documented |= dict.fromkeys(re.findall(r"`(\w+)`", names), what)
    assert sorted(documented) == cordwood.__all__
    # A name that leads nowhere fails here; so does a class that is documented as a function.
    for name, what in documented.items():
        assert isinstance(getattr(cordwood, name), type) is not what.startswith("function"), name


# ---- arguments are the fields of options values ----------------------------------------------------------------------

WITH_OPTIONS: Mapping[str, Sequence[type]] = {
    "ls": [ListOptions],
    "erase_check": [EraseCheckOptions],
    "get": [GetOptions],
    "groups": [GroupOptions],
    "transactions": [TransactionOptions],
    "abort_transaction": [AbortOptions],
    "topics": [ClusterOptions],
    "configs": [ClusterOptions],
    "brokers": [BrokersOptions],
    "why": [WhyOptions],
    "view_html": [WhyOptions],
    "plan": [PlanOptions],
    "plan_exact": [PlanOptions],
    "clean": [PlanOptions, CopyOptions, TaskOptions],
    "clean_in_place": [PlanOptions, InPlaceOptions, TaskOptions],
    "verify": [VerifyOptions],
    "compare": [CompareOptions],
    "simulate": [SimulateOptions],
    "explain": [ExplainOptions],
    "latest_table": [TableOptions],
    "table_offsets": [TableOptions],
    "write_table": [TableOptions, TableFileOptions],
}


def test_the_stub_is_what_the_functions_say() -> None:
    """Editors and type checkers read it."""
    script = Path(__file__).parents[1] / "scripts" / "api-stub"
    printed = subprocess.run([sys.executable, script, "--print"], capture_output=True, text=True, check=True).stdout
    assert Path(str(api.__file__)).with_suffix(".pyi").read_text() == printed, "scripts/api-stub writes it anew"


def test_each_option_is_an_argument_with_its_default_and_its_help() -> None:
    for name, kinds in WITH_OPTIONS.items():
        function = getattr(cordwood, name)
        parameters, text = inspect.signature(function).parameters, " ".join(str(inspect.getdoc(function)).split())
        for one in (one for kind in kinds for one in option_fields(kind)):
            assert (parameters[one.name].annotation, parameters[one.name].default) == (one.argument_text, one.default)
            assert f"{one.name}: {one.option.help}" in text


def test_a_misspelt_argument_is_refused_with_the_one_that_was_meant() -> None:
    for given, meant in (("topcs", "; did you mean topics?"), ("zzz", "")):
        said = f"plan() got an unexpected keyword argument '{given}'{meant}"
        with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
            cordwood.plan("/logs", **{given: ["orders"]})  # type: ignore[arg-type]


def test_a_call_without_any_path_is_refused() -> None:
    """Paths may come from a pattern that matches no file; an empty result would look like a good answer."""
    needed: dict[str, Any] = {
        "get": {"keys": ["a"]},
        "erase_check": {"keys": ["a"]},
        "abort_transaction": {"topic": "t", "producer_id": 1},
        "clean": {"output": "/new"},
        "write_table": {"output": "/new"},
        "latest_table": {"spark": None},
    }
    takes_paths = [name for name in WITH_OPTIONS if "paths" in inspect.signature(getattr(cordwood, name)).parameters]
    for name in (*takes_paths, "check"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) is given no path: give at least one$"):
            getattr(cordwood, name)(**needed.get(name, {}))


def test_a_log_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "t-0").write_bytes(b"")
    with pytest.raises(NotFoundError, match=f"^{tmp_path}/t-1 does not exist$"):
        cordwood.open_log(tmp_path / "t-1")
    with pytest.raises(cordwood.RequestError, match=f"^{tmp_path}/t-0 is a file, not a partition's directory$"):
        cordwood.open_log(tmp_path / "t-0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NotFoundError, match=f"^{tmp_path}/empty is empty: there is no log directory or partition in it"
    ):
        cordwood.open_log(tmp_path / "empty")


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        ("plan", {"first_dirty": "x"}, "first_dirty is a whole number or None, not 'x' (str)"),
        ("plan", {"memory": True}, "memory is a whole number or None, not True (bool)"),
        ("explain", {"scale": "10"}, "scale is a number or None, not '10' (str)"),
        ("plan", {"retention": 1}, "retention is True or False, not 1 (int)"),
        ("plan", {"high_watermark": "ende"}, "high_watermark is a whole number or 'end' or None, not 'ende' (str)"),
        ("ls", {"topics": "orders"}, "topics is a list of texts: pass ['orders'], not 'orders'"),
        ("index", {"topics": "orders"}, "topics is a list of texts: pass ['orders'], not 'orders'"),
        ("ls", {"topics": ["a", 1, "b"]}, "topics is a list of texts, not ['a', 1, 'b'] (list)"),
        ("ls", {"partitions": [0]}, "partitions is a list of texts, not [0] (list)"),
        ("ls", {"metadata": 7}, "metadata is text or None, not 7 (int)"),
        # Else each of its characters would be looked for, and perhaps none be found.
        ("erase_check", {"keys": "user-17"}, "keys is a list of bytes or texts: pass ['user-17'], not 'user-17'"),
        ("get", {"keys": b"user-17"}, "keys is a list of bytes or texts: pass [b'user-17'], not b'user-17'"),
        (
            "table_offsets",
            {"as_of": {"0": 1}},
            "as_of is a whole number or text or a mapping of whole numbers to whole numbers or None, "
            "not {'0': 1} (dict)",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(function: str, given: Mapping[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(f'{function}(): {said}')}$"):
        getattr(cordwood, function)("/logs", **given)


def test_one_path_where_several_are_asked_for_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match=r"^log_dirs is a sequence of paths: pass \['abc'\], not 'abc'$"):
        cordwood.LogManager(MemoryFileSystem(lambda: 0), "abc")
    with pytest.raises(TypeError, match=r"^ls\(\): a path is text, not \['abc'\] \(list\)$"):
        cordwood.ls(["abc"])  # type: ignore[arg-type]


def test_a_method_without_options_values_refuses_the_same() -> None:
    with pytest.raises(TypeError, match=r"^configs is .+, not 'compact' \(str\)$"), cordwood.Log.open("t-0", "compact"):  # type: ignore[arg-type]
        pass


def test_a_value_of_each_type_is_taken() -> None:
    taken: dict[Any, list[Any]] = {
        int | None: [3, np.int64(3), None],
        float: [0.5, 1, np.float32(0.5)],
        Sequence[str]: [[], ("a", "b"), {"a"}, {"a": 1}.keys()],
        Sequence[bytes | str]: [[b"a", "a"]],
        int | str | Mapping[int, int]: [3, "now", {0: 3}],
        Literal["fail", "null"]: ["null"],
    }
    for kind, values in taken.items():
        for value in values:
            assert checked("it", kind, value) is value


def test_a_path_may_be_a_pathlib_path(tmp_path: Path) -> None:
    directory, log = fixture("kraft-classic-before"), fixture("kraft-classic-before") / "orders-0"
    assert isinstance(directory, Path)
    assert str(cordwood.ls(directory, metadata=directory)) == str(cordwood.ls(str(directory), metadata=str(directory)))
    assert cordwood.check(directory) == cordwood.check(str(directory))
    assert cordwood.open_log(log, index_dir=tmp_path).path == str(log)
    copied = cordwood.clean(log, output=tmp_path / "out", single_copy=True, engine="here")
    assert cordwood.verify(log, tmp_path / "out" / "orders-0", engine="here").holds, copied.text()
    assert cordwood.index(log, index_dir=tmp_path / "indexes").partitions
    with pytest.raises(cordwood.RequestError, match="is not in an object store"):
        cordwood.fetch(directory, tmp_path / "fetched")


def test_no_argument_of_a_public_function_is_hidden() -> None:
    for name in WITH_OPTIONS:
        parameters = inspect.signature(getattr(cordwood, name)).parameters.values()
        assert not [one.name for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
        assert all(one.annotation for one in parameters)


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import cordwood; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [
        name for name in found if name.partition(".")[0] in ("cordwood", "numpy", "numba", "pyarrow", "pyspark")
    ] == ["cordwood"]


def test_a_listing_prints_a_line_per_partition() -> None:
    listing = cordwood.ls(str(fixture("kraft-classic-before")), topics=["orders"])
    assert str(listing).splitlines()[0] == "orders-0: 4 segments, 34351 bytes, start offset 0, log end offset 494"
    assert len(str(listing).splitlines()) == len(listing.partitions) == 3


def test_planning_needs_no_spark() -> None:
    code = (
        "import sys, cordwood; print(cordwood.plan(sys.argv[1], topics=['orders'], now_ms=10**12));"
        "print('pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(fixture("kraft-before"))]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["Plan of 2001-09-09 01:46:40 UTC: 3 to clean, 0 to leave alone, 0 to refuse", "False"]


def test_results_are_short_as_a_string_whole_as_text_and_a_table_in_a_notebook() -> None:
    plan = cordwood.plan(str(fixture("kraft-before")), topics=["orders"], now_ms=10**12)
    assert plan.text().startswith("PARTITION")
    assert "3 of 3 partitions to clean" in plan.text()
    html = plan._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == 5 and "orders-1" in html and ">total<" in html

    counts = Counts(records_read=5, records_kept=3, records_superseded=2)
    name = TopicPartition("a", 0)
    result = cordwood.CleanResult(
        "/new",
        0,
        (
            cordwood.PartitionResult("/logs/a-0", name, cordwood.Fate.CLEANED, "dirty", counts),
            cordwood.PartitionResult("/logs/b", None, cordwood.Fate.COPIED, "not named like a partition"),
        ),
        seconds=2.0,
        clean_seconds=1.0,
    )
    assert str(result) == "/new: 1 cleaned, 1 copied; 5 records read, 3 kept"
    assert "5 records read, 3 kept, 2 dropped: 2 superseded" in result.text()
    assert "2 partitions: 1 cleaned, 1 copied; /new: 0 B of logs, 0 B before" in result._repr_html_()


def test_names_from_disk_are_escaped_in_a_notebook() -> None:
    reason = Reason("not named like a partition (topic-number)")
    plan = cordwood.Plan(0, (cordwood.PartitionPlan("/logs/<b>\x1b[1m&", None, cordwood.Decision.LEAVE, reason),))
    html = plan._repr_html_()
    assert "/logs/&lt;b&gt;\\x1b[1m&amp;" in html
    assert "<b>" not in html and "\x1b" not in html


def test_a_long_table_is_cut_in_a_notebook() -> None:
    rows = [[str(number)] for number in range(60)]
    html = html_table([Column("N")], rows, "all", last_rows=[["total"]], rows_max=50)
    assert html.index("and 10 more") < html.index(">total<")
    assert html.count("<tr>") == 53 and "and 10 more" in html and '<td style="text-align: left">50</td>' not in html


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (cordwood.table_offsets, "more than one topic; name one with topic=: "),
        (lambda logs: cordwood.table_offsets(logs, topic="orders", as_of=-1), "as_of=-1: there are 3 partitions"),
        (lambda logs: cordwood.plan(logs, overrides=["x"]), "overrides=['x']: write key=value"),
        (lambda _: cordwood.simulate(rate="1/s", skew=2.0), "skew= and preload=True go with keys=: "),
    ],
)
def test_errors_name_the_arguments_of_python(call: Callable[[str], object], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as caught:
        call(str(fixture("kraft-before")))
    assert "--" not in str(caught.value)


def test_a_whole_command_in_an_error_stays_a_command() -> None:
    with pytest.raises(RequestError, match="cordwood get"):
        cordwood.table_offsets(str(fixture("kraft-before")), topic="orders", key="nothing")


def test_a_listing_shows_itself_in_a_notebook_with_escaped_names(tmp_path: Path) -> None:
    (tmp_path / "a<b>-0").mkdir()
    (tmp_path / "a<b>-0" / "00000000000000000000.log").touch()
    listing = cordwood.ls(tmp_path)
    html = listing._repr_html_()
    assert html.startswith("<table>") and "a&lt;b&gt;-0" in html and "a<b>" not in html
    assert "1 partition" in listing.text() and listing.document()["partitions"]
