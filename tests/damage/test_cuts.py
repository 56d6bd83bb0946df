"""Cut a small file of each format to every length: the remainder reads as a torn tail, or is reported, and yields only
a part of the original contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cordwood.storage.log import windows
from tests.damage.samples import Sample, entries, logs, memory, small_files
from tests.damage.summary import PROPERTY, Tally
from tests.fs.trees import put

pytestmark = pytest.mark.more

#: Format: the fields in or before which a file may end unnoticed by a reader, as the file does not hold its length.
#: `cordwood check` compares indexes with the log, epochs with the batches and checkpoints with the partitions.
UNNOTICED = {
    # At the end of an entry.
    "offset index": {"entry's offset"},
    "time index": {"entry's timestamp"},
    "transaction index": {"version"},
    # Kafka creates them empty, and reads a file without the line that has the count as an empty one. Of the last line
    # the end may be missing, and digits before it.
    "leader-epoch-checkpoint": {"version", "line end", "count", "start offset"},
    "offset checkpoint": {"version", "line end", "count", "offset"},
    # A file without properties is one of version 0, which need not have any; a last value may be shorter.
    "meta.properties": {"comment", "key", "node id", "directory id", "line end", "version", "cluster id"},
    # Only its existence counts; Kafka treats an unparsable file as one without a broker epoch.
    ".kafka_cleanshutdown": {"version", "frame", "broker epoch"},
}


@pytest.mark.parametrize("sample", logs(), ids=str)
def test_a_cut_log_reads_up_to_its_last_whole_batch(
    sample: Sample, record_property: Callable[[str, object], None]
) -> None:
    tally = Tally("cuts", sample.group)
    read = sample.open()
    good = read(sample.data)
    batches, records = good.facts
    assert isinstance(batches, Sequence) and isinstance(records, Sequence)
    ends = [end for _, end, _ in entries(sample.data)]
    closed = len(batches) > len(ends)  # there is another segment behind this one
    for size in range(len(sample.data)):
        found = read(sample.data[:size])
        whole = sum(end <= size for end in ends)
        kept = [batch for batch in batches if batch in batches[:whole] or batch in batches[len(ends) :]]
        if closed and size not in (0, *ends):
            (error,) = found.damage
            assert error.position == max([0, *(end for end in ends if end <= size)])
            assert error.path is not None and error.path.endswith(sample.file)
            tally.reported += 1
        else:
            assert not found.damage
            assert list(found.facts[0]) == kept  # type: ignore[call-overload]
            tally.torn += 1
        lost = {record for record in records if record not in found.facts[-1]}  # type: ignore[operator]
        assert [record for record in records if record not in lost] == list(found.facts[-1])  # type: ignore[call-overload]
        if not closed:
            assert list(records[len(records) - len(lost) :]) == [record for record in records if record in lost]
    record_property(PROPERTY, tally.to_json())
    assert tally.cases == len(sample.data)


@pytest.mark.parametrize("sample", small_files(), ids=str)
def test_a_cut_small_file_is_reported_or_ends_where_nothing_can_tell(
    sample: Sample, record_property: Callable[[str, object], None]
) -> None:
    tally = Tally("cuts", sample.group)
    read = sample.open()
    good = read(sample.data)
    for size in range(len(sample.data)):
        found = read(sample.data[:size])
        name = sample.field_at(size).name
        if found.damage:
            tally.reported += 1
        elif found.facts == good.facts:
            tally.same += 1
        else:
            assert name in UNNOTICED.get(sample.group, ()), f"a cut to {size} bytes, before {name}, passes"
            tally.uncovered[name] += 1
    record_property(PROPERTY, tally.to_json())


@pytest.mark.parametrize("sample", logs(), ids=str)
def test_windows_of_a_cut_log_and_its_gap_cover_every_byte(sample: Sample) -> None:
    path = f"/{sample.file}"
    fs = memory({path: sample.data})
    for size in range(0, len(sample.data), 3):
        put(fs, path, sample.data[:size])
        position = 0
        with fs.open(path) as file:
            for item in windows.WindowReader(file, windows.Checks.WHOLE):
                assert item.position == position
                if isinstance(item, windows.Gap):
                    assert item.kind is windows.GapKind.TORN or not any(sample.data[position:size])
                    position = item.end
                else:
                    position += int(item.batches["size_bytes"].sum())
        assert position == size
