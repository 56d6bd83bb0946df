"""What `import cordwood` offers."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import cordwood
from cordwood import api
from cordwood.cleaning.plan import Reason
from cordwood.cleaning.rewrite import Counts
from cordwood.commands.selection import Selection
from cordwood.option import OptionField, option_fields
from cordwood.text import Column, html_table
from cordwood.types import TopicPartition
from tests.fixtures import fixture
from tests.knobs import REWRITE

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

WITH_OPTIONS = ("ls", "plan", "plan_exact", "clean", "clean_in_place", "verify", "transactions")


def _argument(one: OptionField) -> str:
    default = "()" if one.default == () else repr(one.default).replace("'", '"')
    return f"    {one.name}: {one.type_text} = {default},\n"


def _help(one: OptionField) -> str:
    return (
        textwrap.fill(f"{one.name}: {one.option.help}", 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"
    )


def _passed_on(kind: type, indent: str) -> Iterator[str]:
    """The arguments that build an options value, line by line."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        if is_dataclass(inner := hints[one.name]):
            yield f"{indent}{one.name}={inner.__name__}(\n"  # type: ignore[union-attr]
            yield from _passed_on(inner, indent + "    ")  # type: ignore[arg-type]
            yield f"{indent}),\n"
        else:
            yield f"{indent}{one.name}={one.name},\n"


def _with_all_options(source: str) -> str:
    """The source of a function, with what follows from its options values written anew."""
    kinds: list[type] = []

    def passed_on(match: re.Match[str]) -> str:
        kinds.append(getattr(api, match[2]))
        arguments = list(_passed_on(kinds[-1], " " * 8))
        short = f"    {match[1]} = {match[2]}({', '.join(one.strip().rstrip(',') for one in arguments)})\n"
        if len(arguments) == 1 and len(short) <= 120:
            return short
        return f"    {match[1]} = {match[2]}(\n{''.join(arguments)}    )\n"

    # `RunOptions` has no options in this sense: its arguments stand among those of the function.
    found = r"^    (\w+) = ((?!Run)\w+Options)\((?:\n.*?^    \)\n|.*?\)\n)"
    source = re.sub(found, passed_on, source, flags=re.MULTILINE | re.DOTALL)
    every = [one for kind in kinds for one in option_fields(kind)]
    arguments, texts = "".join(map(_argument, every)), "".join(map(_help, every))
    source = re.sub(r"(?<=    # Options:\n).*?(?=^\) -> )", lambda _: arguments, source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=^    Options:\n).*?(?=^$)", lambda _: texts, source, count=1, flags=re.MULTILINE | re.DOTALL)


def test_each_option_is_an_explicit_argument_with_type_default_and_help() -> None:
    path = Path(str(api.__file__))
    source = path.read_text()
    wanted = "".join(map(_with_all_options, re.split(r"^(?=def )", source, flags=re.MULTILINE)))
    if wanted != source and REWRITE:
        path.write_text(wanted)
    else:
        assert source == wanted, "CORDWOOD_REWRITE=1 rewrites it"


def test_partitions_are_selected_by_the_same_arguments_everywhere() -> None:
    for name in WITH_OPTIONS:
        function = getattr(cordwood, name)
        parameters, text = inspect.signature(function).parameters, str(inspect.getdoc(function))
        for one in option_fields(Selection):
            assert (parameters[one.name].annotation, parameters[one.name].default) == (one.type_text, one.default)
            assert f"{one.name}: {one.option.help}" in " ".join(text.split())


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
    assert str(listing).splitlines()[0] == "orders-0: 4 segments, 34351 bytes, start offset 0, next offset 494"
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
