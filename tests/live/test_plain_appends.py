"""The fast path of an append beside the slow one: accepted batches have the same result, rejected ones change no
state.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import LogError
from cordwood.common.types import Codec
from cordwood.kernels.layout import HEADER
from cordwood.live.appending import Append
from cordwood.live.environment import LogConfig
from cordwood.live.producer_state import AppendOrigin
from cordwood.live.validation import assign_plain, encode_plain
from cordwood.record.batch import encode_batch, seal
from cordwood.record.record import Record
from tests.live.live_logs import NOW_MS
from tests.live.live_script import config_of

RECORDS = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"k", b"key" * 30]),
        st.sampled_from([None, b"", b"value" * 40]),
        st.sampled_from([NOW_MS, NOW_MS - 5, NOW_MS, -1, NOW_MS - 2_000, NOW_MS + 4_000_000]),
    ),
    min_size=1,
    max_size=4,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cleanup.policy": st.sampled_from(["compact", "delete"]),
        "message.timestamp.type": st.just("LogAppendTime"),
        "message.timestamp.before.max.ms": st.just("1000"),
        "compression.type": st.sampled_from(["producer", "uncompressed", "lz4"]),
        "max.message.bytes": st.just("150"),
    },
)
#: Header fields by their places; the first and the times are 64 bits wide.
_LONGS = (0, 7, 8, 9)
_COUNT = len(HEADER.unpack(bytes(HEADER.size)))
#: (field, its false value); most appends have no false field.
FIELDS = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.integers(0, _COUNT - 1), st.sampled_from([-1, 0, 1, 2, 3, 7, 8, 16, 32, 64, NOW_MS])),
)
seen: Counter[bool] = Counter()


@settings(max_examples=400)
@given(
    records=RECORDS,
    config=CONFIGS,
    change=FIELDS,
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    producer=st.sampled_from([-1, -1, 7]),
    sealed=st.booleans(),
    more=st.sampled_from([b"", b"", b"", b"\0" * 20]),
)
def compare(
    records: list[tuple[bytes | None, bytes | None, int]],
    config: dict[str, str],
    change: tuple[int, int] | None,
    codec: Codec,
    producer: int,
    sealed: bool,
    more: bytes,
) -> None:
    made = [Record(at, timestamp, key, value) for at, (key, value, timestamp) in enumerate(records)]
    epoch = 0 if producer >= 0 else -1
    batch = encode_batch(
        made, base_offset=0, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=epoch
    )
    if change is not None:
        at, value = change
        fields = list(HEADER.unpack_from(batch))
        fields[at] = value if at in _LONGS else value % 128
        batch = HEADER.pack(*fields) + batch[HEADER.size :]
        batch = seal(batch) if sealed else batch
    data = batch + more
    topic = LogConfig.of(config_of(config))
    mine = bytearray(data)
    found = assign_plain(mine, topic, 1_000, 5, NOW_MS)
    seen[found is not None] += 1
    if found is None:
        assert mine == data
        return
    append = Append("t-0", AppendOrigin.CLIENT, 5, topic, 2)
    theirs = bytearray(data)
    try:
        info, batches = append.analyse(theirs, 0)
        theirs, batches, placed = append.place(theirs, batches, info, 1_000, NOW_MS)
    except LogError as error:
        raise AssertionError(f"the long way refuses it: {error}") from error
    plain, sent_leader_epoch = found
    assert (mine, [plain]) == (theirs, batches)
    assert (placed.last_offset, placed.max_timestamp) == (plain.last_offset, plain.max_timestamp)
    assert placed.last_leader_epoch == sent_leader_epoch


def test_the_short_way_gives_what_the_long_way_gives_or_changes_nothing() -> None:
    seen.clear()
    compare()
    assert seen[True] > 40 and seen[False] > 40, seen


@settings(max_examples=200)
@given(record=RECORDS.map(lambda records: records[0]), config=CONFIGS, headers=st.booleans())
def test_a_record_is_encoded_in_its_place_as_it_would_be_assigned_there(
    record: tuple[bytes | None, bytes | None, int], config: dict[str, str], headers: bool
) -> None:
    key, value, timestamp = record
    made = Record(0, timestamp, key, value, (("name", b"x"), ("none", None)) if headers else ())
    topic = LogConfig.of(config_of(config))
    data = bytearray(encode_batch([made]))
    found = assign_plain(data, topic, 1_000, 5, NOW_MS)
    assert encode_plain(made, topic, 1_000, 5, NOW_MS) == (None if found is None else (data, found[0]))
