"""All small formats together.

Every such file that a broker left is read and written back byte for byte, and no bytes, however hostile, do more than
raise the error that is meant for them.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import BadNameError, CorruptFileError
from cordwood.storage.formats import (
    filenames,
    properties,
)
from cordwood.storage.formats.filenames import FileKind
from tests.fixtures import NAMES, fixture
from tests.storage.messages import DAMAGE, FORMATS

BASE = 100


@functools.cache
def files(name: str) -> tuple[tuple[str, int, Path], ...]:
    """The files of a fixture that have one of the formats: (format, offset, path)."""
    return tuple(_files(fixture(name)))


def _files(root: Path) -> Iterator[tuple[str, int, Path]]:
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        if path.name in filenames.OFFSET_CHECKPOINTS:
            yield "offset checkpoint", 0, path
        elif path.name in FORMATS:
            yield path.name, 0, path
        file = filenames.parse_file(path.name)
        assert file is not None, path
        if file.kind is not FileKind.FOREIGN:
            assert file.name == path.name
            if file.kind in FORMATS and path.name not in FORMATS:
                yield file.kind, file.offset, path


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.strip("."))
def test_every_file_of_a_broker_is_written_back_byte_for_byte(
    kind: str, record_property: Callable[[str, object], None]
) -> None:
    form = FORMATS[kind]
    seen: Counter[str] = Counter()
    found: dict[tuple[str, str], str] = {}
    for name in NAMES:
        for path_kind, offset, path in files(name):
            if path_kind != kind:
                continue
            data = path.read_bytes()
            seen["files"] += 1
            seen["never written"] += kind == "offset checkpoint" and not data
            place = (name, str(path.relative_to(fixture(name))))
            try:
                for fault in form.faults(data, offset):
                    found[place] = fault.what
                assert form.again(data, offset) in (data, data or b"0\n0\n"), place
            except CorruptFileError as error:
                found[place] = error.what
    for what, count in seen.items():
        record_property(f"{kind} {what}", count)
    print(f"{kind}: {dict(seen)}, damaged {len(found)}")
    assert seen["files"] > 0
    expected = {place: what for place, what in DAMAGE.items() if place[1].endswith(kind)}
    assert found.keys() == expected.keys()
    assert all(what in found[place] for place, what in expected.items())


def test_every_directory_of_a_broker_is_a_partition_with_its_own_name() -> None:
    states: Counter[str] = Counter()
    for name in NAMES:
        for parent in {path.parent for _, _, path in files(name) if path.name.endswith((".log", ".timeindex"))}:
            directory = filenames.parse_directory(parent.name)
            assert directory.name == parent.name
            assert directory.topic_partition.topic and filenames.topic_fault(directory.topic_partition.topic) is None
            states[directory.state] += 1
    print({state or "current": count for state, count in states.items()})
    assert states.keys() == set(filenames.DirectoryState)


HOSTILE = st.binary(max_size=200) | st.text(st.sampled_from('0129 -+:\n\r\\u#={}[]",ab'), max_size=60).map(str.encode)


def survives(kind: str, data: bytes) -> None:
    with contextlib.suppress(CorruptFileError, BadNameError):
        FORMATS[kind].again(data, BASE)
        FORMATS[kind].faults(data, BASE)
        if kind == filenames.META_PROPERTIES:
            properties.meta_properties(properties.decode_properties(data))


@pytest.mark.parametrize("kind", FORMATS)
def test_random_bytes_raise_nothing_but_corrupt_file(kind: str) -> None:
    @given(HOSTILE)
    def run(data: bytes) -> None:
        survives(kind, data)

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_good_files_with_damage_raise_nothing_but_corrupt_file(kind: str) -> None:
    @given(st.data())
    def run(draw: st.DataObject) -> None:
        data = FORMATS[kind].sample
        start = draw.draw(st.integers(0, len(data)))
        end = draw.draw(st.integers(start, min(start + 4, len(data))))
        survives(kind, data[:start] + draw.draw(st.binary(max_size=4) | HOSTILE) + data[end:])

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_samples_are_good(kind: str) -> None:
    assert FORMATS[kind].again(FORMATS[kind].sample, BASE) == FORMATS[kind].sample
    assert FORMATS[kind].faults(FORMATS[kind].sample, BASE) == []
