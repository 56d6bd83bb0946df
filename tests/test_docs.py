"""The documentation is correct: its commands, examples, layouts, tables and links are compared with the program.

Each page's examples run in a folder with the demo log unpacked, in the order of the page:

    console     lines after `$ ` run (a `cordwood` in this process, other lines in a shell), and their output must equal
                the page's; … is any text, `echo $?` for the last exit code
    sh          its `cordwood` lines run, up to a pipe, and must succeed
    python      with `>>>` a doctest; else it must run

`CORDWOOD_REWRITE=1` writes the output of console examples, boxes and generated tables into the pages, to be reviewed as
a diff.
"""

from __future__ import annotations

import base64
import contextlib
import doctest
import importlib
import io
import json
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer
from pyspark.sql import SparkSession

from cordwood.cli.demo import unpack
from cordwood.cli.main import VERBS, app
from cordwood.commands.opening import open_log
from cordwood.common.errors import MissingCodecError
from cordwood.common.types import Codec, ControlType
from cordwood.record import compression
from cordwood.record.batch import Batch
from cordwood.storage.check import KINDS, Severity
from cordwood.storage.formats import filenames
from cordwood.storage.formats.cluster_metadata import RECORDS
from cordwood.storage.formats.filenames import DirectoryState, FileKind, Temporary
from cordwood.storage.formats.messages.schema import Message, RecordType
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS
from cordwood.tables.source.options import known_options
from cordwood.tables.source.schema import KAFKA_COLUMNS, MORE_COLUMNS, SourceColumn
from tests.command import run
from tests.commands.cluster_scene import CLUSTER, CLUSTER_ARCHIVE, directories
from tests.damage.samples import UNCOVERED
from tests.fixtures import fixture, unpacked
from tests.fs.object_server import environment, running_server
from tests.knobs import REWRITE
from tests.spark_folder import folder_of

ROOT = Path(__file__).parent.parent

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = ROOT / "docs/commands.md"
DAMAGE = ROOT / "docs/damage.md"
FORMAT = ROOT / "docs/format"

#: Pages whose examples only `make test-all` runs. Those of docs/commands.md run most commands.
MORE = ("cluster", "explain", "internal-topics", "object-stores", "python", "simulate", "spark", "table")

per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
per_example_page = pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.more] if page.stem in MORE else [])
        for page in PAGES
    ],
)


def agrees(page: Path, found: str, wanted: str, what: str) -> None:
    """Compare a page's text with the program's, or rewrite it."""
    if found == wanted:
        return
    if REWRITE:
        text = page.read_text()
        assert text.count(found) == 1, f"{what} stands in {page.name} {text.count(found)} times"
        page.write_text(text.replace(found, wanted))
    else:
        assert found == wanted, f"{what} in {page.name}; CORDWOOD_REWRITE=1 rewrites it"


# ---- commands and options --------------------------------------------------------------------------------------------


def options(verb: str) -> dict[str, Any]:
    """Option names of a command, each with its parameter."""
    group = typer.main.get_command(app)
    command = group if not verb else group.get_command(None, verb)  # type: ignore[attr-defined]
    params = [one for one in command.params if one.param_type_name == "option"]
    return {name: one for one in params for name in (*one.opts, *one.secondary_opts) if name != "--help"}


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next heading of its level; without blocks."""
    level = heading.split()[0]
    pattern = rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)"
    found = re.search(pattern, without_blocks(text), re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading!r}"
    return found[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_command_is_in_its_section_and_no_other(verb: str) -> None:
    text = section(COMMANDS.read_text(), f"## cordwood {verb}")
    listed = re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(options(verb))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= {*options(verb), "--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_choice_that_an_option_offers_is_in_its_line(verb: str) -> None:
    text = section(COMMANDS.read_text(), f"## cordwood {verb}")
    for name, param in options(verb).items():
        (line,) = re.findall(rf"^\| `{name}`.*$", text, re.MULTILINE)
        for choice in getattr(param.type, "choices", ()):
            assert f"`{getattr(choice, 'value', choice)}`" in line


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_names_its_python_twin(verb: str) -> None:
    assert re.search(r"^\*\*Python:\*\* ", section(COMMANDS.read_text(), f"## cordwood {verb}"), re.MULTILINE)


@per_page
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    known = {"--help"}.union(*(options(verb) for verb in ("", *VERBS)))
    named = {
        option
        for code in re.findall(r"`([^`\n]+)`", without_blocks(page.read_text()))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
    }
    assert named <= known


# ---- examples --------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    language: str
    body: str


def blocks(text: str) -> list[Block]:
    return [Block(*one) for one in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


class Shell:
    """Runs an example's lines; a `cordwood` without starting a process."""

    def __init__(self) -> None:
        self.code = 0

    def run(self, line: str) -> str:
        """The output of a line, on either stream."""
        if line == "echo $?":
            return f"{self.code}\n"
        if not line.startswith("cordwood "):
            other = subprocess.run(line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.code = other.returncode
            return other.stdout.decode()
        command, _, target = line.partition(" > ")
        done = run(*shlex.split(command)[1:], exits=None)
        self.code = done.exit_code
        if target:
            Path(target).write_text(done.stdout)
        return done.stderr if target else done.output


def trimmed(text: str) -> str:
    """Without spaces at line ends and lines without anything at the end."""
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).rstrip("\n") + "\n" if text.strip() else ""


def without_sizes(text: str) -> str:
    """A text without sizes, and without their effect on the width of columns."""
    return re.sub(" +", " ", re.sub(r"\d[\d,.]* [kMG]?B", "size", text))


def shows(expected: str, actual: str) -> bool:
    """Whether a page shows the output; … matches any text."""
    return re.fullmatch(re.escape(expected).replace("…", ".*?"), actual, re.DOTALL) is not None


def console(body: str, shell: Shell) -> str:
    """A console block as it should be: where it holds already, as it is."""
    shown = []
    # The pages show sizes on ext4; where a folder takes another space than there, only they may differ.
    same_disk = Path("kafka-logs").stat().st_blocks == 8
    for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
        if not part:
            continue
        command, _, expected = part.partition("\n")
        assert command.startswith("$ "), f"{command!r} is not a command"
        actual = trimmed(shell.run(command[2:]))
        expected = trimmed(expected)
        holds = shows(expected, actual) or (not same_disk and shows(without_sizes(expected), without_sizes(actual)))
        shown.append(part if holds else f"{command}\n{actual}")
    return "".join(shown)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The demo log, in a folder that the test runs in: on a disk, as the pages show sizes there."""
    with tempfile.TemporaryDirectory(prefix="cordwood-docs-") as folder:
        unpack(Path(folder))
        monkeypatch.chdir(folder)
        yield Path(folder)
        monkeypatch.undo()


@pytest.fixture
def bucket(spark: SparkSession) -> Iterator[None]:
    """An S3 server with a bucket, which this process and Spark's workers find in their environment."""
    of_workers = spark.sparkContext.environment
    before = dict(of_workers)
    with running_server() as server:
        of_workers.update(environment(server.address))
        yield
    of_workers.clear()
    of_workers.update(before)


def emptied(folder: Path) -> Path:
    """Empty a folder that processes run in, so that it has to stay."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return folder


@per_example_page
def test_the_examples_of_a_page_run_and_print_what_it_shows(
    page: Path, demo: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if re.search(r"cordwood[ .](clean|register)\b|SparkSession", page.read_text()):
        folder = emptied(folder_of(request.getfixturevalue("spark")))  # one session, which is found, for all pages
        unpack(folder)
        monkeypatch.chdir(folder)
    if "$ cordwood" in page.read_text() and "s3://" in page.read_text():
        request.getfixturevalue("bucket")
    if CLUSTER in page.read_text():
        for path in directories(unpacked(CLUSTER_ARCHIVE)):
            shutil.copytree(path, Path(CLUSTER) / path.name)
    if "--tier bucket/" in page.read_text():
        shutil.copytree(fixture("aiven-s3") / "bucket", "bucket")
        key = json.loads((fixture("aiven-s3") / "test-key.json").read_text())
        encoded = base64.b64encode(bytes.fromhex(key["hex"])).decode()
        Path("key1.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n")
    shell = Shell()
    names: dict[str, Any] = {}
    for language, body in blocks(page.read_text()):
        if language == "console":
            agrees(page, f"```console\n{body}```\n", f"```console\n{console(body, shell)}```\n", "an example")
        elif language == "sh":
            for line in body.splitlines():
                if line.startswith("cordwood "):
                    output = shell.run(line.partition(" #")[0].partition(" | ")[0])
                    assert shell.code == 0, f"{line}: {output}"
        elif language == "python" and ">>>" in body:
            example = doctest.DocTestParser().get_doctest(body, names, page.name, str(page), 0)
            found = io.StringIO()
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(example, out=found.write, clear_globs=False)
            names = example.globs
            assert not runner.failures, found.getvalue()
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(body, str(page), "exec"), names)


def test_examples_are_really_compared(demo: Path) -> None:
    body = "$ cordwood dump kafka-logs/nothing\ncordwood: all is well\n$ echo $?\n0\n"
    assert console(body, Shell()) == (
        "$ cordwood dump kafka-logs/nothing\ncordwood: kafka-logs/nothing does not exist\n$ echo $?\n2\n"
    )


class _Missing:
    """Finds no zstandard, and raises Python's usual error."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "zstandard":
            raise ModuleNotFoundError(f"No module named {name!r}")


def test_the_message_for_a_missing_codec_is_the_documented_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = compression.compress(Codec.ZSTD, b"some records")
    monkeypatch.delitem(sys.modules, "zstandard")
    monkeypatch.setattr(sys, "meta_path", [_Missing(), *sys.meta_path])
    compression._library.cache_clear()
    try:
        with pytest.raises(MissingCodecError) as caught:
            compression.decompress(Codec.ZSTD, payload, magic=2)
    finally:
        compression._library.cache_clear()
    assert f"cordwood: {caught.value}\n" in DAMAGE.read_text()


def test_the_readme_has_the_figures_of_the_page_on_speed() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs/speed.md").read_text().splitlines() if line.startswith("| B |")]
    ratio = {row[1]: row[5] for row in rows}
    claim = " ".join((ROOT / "README.md").read_text().split())
    assert f"a copy {ratio['copy']} times as fast as Kafka's cleaner, and in place {ratio['in place']} times;" in claim
    assert f"in place, it is {ratio['in place, proved']} times as fast." in claim


# ---- links and words -------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@per_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
        waiting += [(page.parent / link).resolve() for link in links]
    assert seen.issuperset(page.resolve() for page in PAGES)


#: Patterns of text that depends on the machine or network where it was written.
ELSEWHERE = re.compile(
    r"(?<![\w.:/~-])/(?:home|Users|root|work|workspace|mnt)(?![\w-])"  # someone's folder
    r"|\.\./shared"
    r"|\b(?:pypi|pythonhosted|npmjs|maven|anaconda|crates)\.(?:org|com|io)\b|--(?:extra-)?index-url"
)
SKIPPED = {"data", "scenarios", "__pycache__"}


def project_files() -> Iterator[Path]:
    roots = [ROOT / name for name in ("src", "tests", "docs", "deploy", "scripts", ".ci")]
    inside = (path for root in roots for path in root.rglob("*") if not SKIPPED & set(path.relative_to(root).parts))
    yield from (
        path for path in (*ROOT.glob("*"), *inside) if path.is_file() and path != Path(__file__) and path.name != ".git"
    )


def test_nothing_in_the_project_names_a_place_that_is_only_here() -> None:
    found = []
    for path in project_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            if ELSEWHERE.search(line) or str(ROOT) in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found


# ---- layouts ---------------------------------------------------------------------------------------------------------

_TYPES = {"b": "i8", "h": "i16", "i": "i32", "I": "u32", "q": "i64"}
_SIZES = {"i8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "8 B": 8, "16 B": 16, "96 B": 96}
_BOX_WIDTH = 112


class Row(NamedTuple):
    """One line of a layout table: position and type are empty where the bytes before decide."""

    position: str
    type: str
    field: str


class Layout(NamedTuple):
    """A drawing and its table: `<!-- layout: module.STRUCT + more of module.Dataclass -->`."""

    page: Path
    source: str
    box: str
    rows: list[Row]


def layouts() -> list[Layout]:
    pattern = r"<!-- layout: (.*?) -->\n\n```text\n(.*?)```\n\n((?:\|[^\n]*\n)+)"
    found = []
    for page in sorted(FORMAT.glob("*.md")):
        for source, box, table in re.findall(pattern, page.read_text(), re.DOTALL):
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
            found.append(Layout(page, source, box, [Row(*line[:3]) for line in cells]))
    return found


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def fixed_fields(source: str) -> tuple[list[tuple[int, str]], list[str]]:
    """(position, type) of each field in the code, and the fields' names if it has some."""
    layout, _, names = source.partition(" of ")
    first, _, more = layout.partition(" + ")
    known = named(first)
    if isinstance(known, np.dtype):
        assert known.fields and known.names
        kinds = [known.fields[name] for name in known.names]
        return [(at, _type_of(kind)) for kind, at, *_ in kinds], list(known.names)
    codes = known.format.lstrip(">") + more
    places = [(struct.calcsize(">" + codes[:i]), _TYPES[code]) for i, code in enumerate(codes)]
    if not names:
        return places, []
    value = named(names)
    assert is_dataclass(value)
    return places, [field.name for field in fields(value)]


def _type_of(kind: np.dtype[Any]) -> str:
    return f"{kind.itemsize} B" if kind.kind in "SV" else f"{kind.kind}{8 * kind.itemsize}"


def box(rows: Sequence[Row]) -> str:
    """Fields side by side, as many as fit, each with its position above its left edge."""
    lines: list[list[Row]] = [[]]
    for row in rows:
        if sum(_width(one) + 1 for one in (*lines[-1], row)) > _BOX_WIDTH:
            lines.append([])
        lines[-1].append(row)
    return "\n".join(_box_line(line) for line in lines)


def _width(row: Row) -> int:
    return max(len(row.field), len(row.position), len(row.type)) + 2


def _box_line(rows: Sequence[Row]) -> str:
    bars = ["─" * _width(row) for row in rows]
    return (
        "".join(row.position.ljust(_width(row) + 1) for row in rows).rstrip()
        + f"\n┌{'┬'.join(bars)}┐\n│{'│'.join(f' {row.field}'.ljust(_width(row)) for row in rows)}│\n"
        + f"│{'│'.join(f' {row.type}'.ljust(_width(row)) for row in rows)}│\n└{'┴'.join(bars)}┘\n"
    )


@pytest.mark.parametrize("layout", layouts(), ids=lambda one: one.source.partition("cordwood.")[2])
def test_a_layout_is_the_one_that_the_code_reads_by(layout: Layout) -> None:
    places, names = fixed_fields(layout.source)
    fixed = [row for row in layout.rows if row.type in _SIZES][: len(places)]
    assert [(int(row.position), row.type) for row in fixed] == places
    if names:
        assert [row.field.lower().replace(" ", "_") for row in fixed] == names
    begin, end = f"<!-- layout: {layout.source} -->\n\n```text\n", "```\n"
    agrees(layout.page, begin + layout.box + end, begin + box(layout.rows) + end, "a box")


def test_every_layout_on_a_page_is_found() -> None:
    assert len(layouts()) == sum(page.read_text().count("<!-- layout:") for page in PAGES) > 0


def test_a_batch_read_by_its_drawn_layout_is_the_batch_that_is_read(demo: Path) -> None:
    (layout,) = (one for one in layouts() if one.source.endswith("layout.HEADER"))
    data = Path("kafka-logs/orders-0/00000000000000000000.log").read_bytes()
    batch = Batch.of(next(open_log("kafka-logs/orders-0").windows())[1].batches[0])  # type: ignore[union-attr]
    wanted = {"size": batch.size_bytes - 12, "crc-32c": batch.crc, "last_offset_delta": batch.last_offset}
    for row in layout.rows:
        if row.type in _SIZES:
            at, name = int(row.position), row.field.lower().replace(" ", "_")
            value = int.from_bytes(data[at : at + _SIZES[row.type]], "big", signed=row.type[0] == "i")
            assert value == wanted.get(name, getattr(batch, name, None)), name


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec], ids=lambda codec: codec.label)
def test_compressed_records_begin_as_documented(codec: Codec) -> None:
    rows = re.findall(rf"^\| {codec.label} \| (\d) \| `([0-9a-f ]+)` \|", (FORMAT / "compression.md").read_text(), re.M)
    assert rows
    for magic, begin in rows:
        start = bytes.fromhex(begin)
        assert compression.compress(codec, b"records " * 100, magic=int(magic))[: len(start)] == start


def test_every_kind_of_name_is_on_the_page_about_directories() -> None:
    text = (FORMAT / "directory.md").read_text()
    fixed = (filenames.META_PROPERTIES, filenames.CLEAN_SHUTDOWN, filenames.LOCK, filenames.BOOTSTRAP_CHECKPOINT)
    more = (*fixed, *filenames.OFFSET_CHECKPOINTS, filenames.REMOTE_INDEX_CACHE, filenames.CLUSTER_METADATA_TOPIC)
    for name in (*FileKind, *Temporary, *DirectoryState, *more):
        assert not name or f"{name}`" in text, name


# ---- tables made from the code ---------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _kinds() -> str:
    head = ("kind", "effect on a broker")
    rows = {one: [(f"`{kind}`", means) for kind, (bad, means) in KINDS.items() if bad is one] for one in Severity}
    return "\n".join(f"**{one.value}**\n\n{table(head, some)}" for one, some in rows.items())


def _uncovered() -> str:
    rows = ((group, field, why) for group, some in UNCOVERED.items() for field, why in some.items())
    return table(("file", "field", "why no checksum covers it, and what detects damage"), rows)


def _metadata_records() -> str:
    names = {one.name: ", ".join(each.name for each in one.fields) or "–" for one in RECORDS.values()}
    rows = ((number, one.name, one.last_version, names[one.name]) for number, one in RECORDS.items())
    return table(("type", "record", "up to version", "fields"), rows)


def _internal_records() -> str:
    head = ("type", "record", "versions", "fields of the key", "fields of the value")
    return "\n".join(
        f"**`{topic.name}`**\n\n{table(head, map(_internal_record, topic.records.values()))}"
        for topic in INTERNAL_TOPICS.values()
    )


def _internal_record(record: RecordType) -> tuple[object, ...]:
    first, last = record.value.first_version, record.value.last_version
    versions = first if first == last else f"{first} to {last}"
    return (record.number, f"`{record.name}`", versions, _names_of(record.key), _names_of(record.value))


def _names_of(message: Message | None) -> str:
    return "–" if message is None or not message.fields else ", ".join(one.name for one in message.fields)


def _control_types() -> str:
    return table(("type", "control record"), ((kind.value, f"`{kind.name}`") for kind in ControlType if kind >= 0))


def _source_columns(columns: Mapping[str, SourceColumn]) -> str:
    return table(("column", "type", ""), ((f"`{name}`", f"`{one.type}`", one.what) for name, one in columns.items()))


def _source_options() -> str:
    rows = ((f"`{one.option.flag}`", one.option.help) for one in known_options().values() if one.name != "path")
    return table(("option", ""), rows)


GENERATED: dict[str, Callable[[], str]] = {
    "source-columns": lambda: _source_columns(KAFKA_COLUMNS),
    "more-source-columns": lambda: _source_columns(MORE_COLUMNS),
    "source-options": _source_options,
    "kinds": _kinds,
    "uncovered": _uncovered,
    "metadata-records": _metadata_records,
    "internal-records": _internal_records,
    "control-types": _control_types,
}


@pytest.mark.parametrize("name", GENERATED)
def test_tables_in_the_docs_are_those_of_the_code(name: str) -> None:
    pattern = rf"(<!-- generated: {name} -->\n\n)(.*?)(\n<!-- end -->)"
    found = [(page, one) for page in PAGES for one in re.findall(pattern, page.read_text(), re.DOTALL)]
    assert found, f"no page has the table {name}"
    for page, (begin, body, end) in found:
        agrees(page, begin + body + end, begin + GENERATED[name]() + end, f"the table {name}")


MODULE = re.compile(
    r"\b((?:cli|bench|simulation|view|live|commands|tables|tasks|cleaning|storage|record|kernels|fs|common|testing)/"
    r"[a-z_/]*[a-z_])\b"
)


def test_architecture_names_modules_that_exist() -> None:
    named = set(MODULE.findall((ROOT / "ARCHITECTURE.md").read_text()))
    source = ROOT / "src" / "cordwood"
    assert len(named) > 40
    missing = [name for name in named if not ((source / name).is_dir() or (source / f"{name}.py").is_file())]
    assert not missing


def test_pages_about_formats_name_modules_that_exist() -> None:
    named = {name for page in FORMAT.glob("*.md") for name in re.findall(r"`([a-z_/]+\.py)`", page.read_text())}
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "src" / "cordwood" / name).is_file()]
