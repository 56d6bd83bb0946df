"""`cordwood dump`: print logs and every other file that Kafka keeps beside them; see `cordwood.cli.dumping`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cordwood.cli.dumping import Choice, Dump
from cordwood.cli.formats import JsonPrinter, PatternPrinter, Printer, TextPrinter
from cordwood.cli.large import SHOWN_BYTES
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, give_up_output, named
from cordwood.cli.options import Partitions, Topics, with_options
from cordwood.cli.values import Shown, ShownAs, ValueFormat, json_string, parse_bytes, parse_offsets, quoted
from cordwood.commands.options import DECODERS, TierPlace, parse_time
from cordwood.common.errors import RequestError
from cordwood.common.types import Isolation
from cordwood.fs.base import Store
from cordwood.tables.decoders.keys import schema_folder

_TIME = "Milliseconds since the epoch, an ISO time (UTC without a zone), or an age such as 5m (ms, s, m, h, d)."


@with_options
def dump(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, partitions, log directories.", show_default=False)
    ],
    tier_place: TierPlace,
    batches: Annotated[bool, typer.Option("--batches", help="Show batches; with --records, both.")] = False,
    records: Annotated[bool, typer.Option("--records", help="Show records; with --batches, both.")] = False,
    topic: Topics = None,
    partition: Partitions = None,
    tail: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Only the last N records of each log; filters apply to these. 0 with --follow: only new records.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep printing appended data, until interrupted, or up to --limit.")
    ] = False,
    grep: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only records with this in key or value: text, or bytes as hex: or base64:."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Only records with exactly this key: text, or bytes as hex:00ff or base64:AP8=.")
    ] = None,
    index_dir: Annotated[
        str | None,
        typer.Option(
            "--index-dir",
            metavar="DIR4",
            help="With --key: folder for key indexes, with a folder for each partition. Default: in each partition.",
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="FROM[:TO]", help="Only offsets from FROM up to, but not including, TO. Default: to the end."
        ),
    ] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="Only offsets from here on.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Only offsets below this.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only records from this time on. {_TIME}")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only records before this time. {_TIME}")] = None,
    isolation: Annotated[
        Isolation | None,
        typer.Option(
            help="Only records that a consumer gets: no control records, nothing below the log start offset, and with "
            "read_committed nothing from aborted or open transactions. Shows records only, unless --batches."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Stop after this many records (or batches, if only they are shown).")
    ] = None,
    key_format: Annotated[ValueFormat | None, typer.Option(help="How to show keys. Default: utf8.")] = None,
    value_format: Annotated[ValueFormat | None, typer.Option(help="How to show values. Default: utf8.")] = None,
    key_as: Annotated[
        str | None, typer.Option(metavar="DECODER", help=f"The type of keys: {DECODERS}. In place of --key-format.")
    ] = None,
    value_as: Annotated[
        str | None, typer.Option(metavar="DECODER", help="The type of values; the same choice.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="PATTERN",
            help="Records only, as kcat prints them: %t topic, %p partition, %o offset, %T timestamp, %k key, "
            "%s value, %h headers, %K and %S size of key and value (-1: null), %R size of the value as 4 bytes, "
            "%% percent; \\n \\t \\r \\xNN. Keys and values are raw bytes unless a format is given; those of a control "
            "record are its type and its coordinator epoch.",
        ),
    ] = None,
    no_decode: Annotated[
        bool,
        typer.Option(
            "--no-decode",
            help="Show records of Kafka's internal topics (__consumer_offsets, …) as bytes, not by their fields.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help=f"Show all of long keys, values and headers; without, the first {SHOWN_BYTES:,} bytes."
        ),
    ] = False,
) -> int:
    r"""Print the contents of logs, and of all other files that Kafka keeps beside them.

    Batches and records of .log files (also .swap, .cleaned, .deleted) and KRaft .checkpoint files; entries of indexes,
    snapshots, checkpoints and the rest. With --key, --since or --until only batches with a matching record are shown.

    Damage is shown at its place (with --format: on stderr), reading continues after it, and the exit status is 1.
    Files that cannot be read are listed on stderr; the exit status is then 2. Incomplete bytes at the end of a log, as
    a crash leaves them, are a "rest", not damage.

    utf8 shows text in quotes, with \xNN for bytes that do not print. Values that json or int cannot parse print as
    hex:00ff. Long keys, values and headers are cut, and their sizes are shown; --full, --json and --format show all.

    Records of Kafka's internal topics are shown by name: their type, its version, and the fields of key and value.
    With --no-decode, or a --key-format or --value-format, they are shown as other records.

    With --json each line has a "type": batch, record, rest, damage, or offset_index, time_index,
    aborted_transaction, producer, leader_epoch, checkpoint, partition_metadata, property, clean_shutdown,
    quorum_state, key_index, indexed_batch, indexed_key, tier_manifest, tier_segment, removed_tier_segment,
    gone_tier_segment. A key or value is null, a string that holds its text (its hex or base64 digits, the JSON
    value or the number, if that is the format), or {"hex": "00ff"} where the format cannot show it. "headers" is a
    list of [name, value]. Records of control batches have "control", their type, and "coordinator_epoch". Records
    of internal topics have "record" and "version", and objects as "key" and "value"; an unreadable record has a
    "problem".
    -1 is Kafka's number for a missing value.
    """
    if pattern is not None and (as_json or batches):
        raise RequestError("--format prints records after a pattern; it does not go with --json or --batches")
    if offset is not None and (from_offset is not None or to_offset is not None):
        raise RequestError("--offset sets both ends; give it without --from-offset and --to-offset")
    if (key_as and key_format) or (value_as and value_format):
        raise RequestError("give a decoder (--key-as, --value-as) or a format (--key-format, --value-format), not both")
    if offset is not None:
        from_offset, to_offset = parse_offsets(offset)
    records_only = isolation is not None or pattern is not None
    choice = Choice(
        batches=batches or not (records or records_only),
        records=records or not batches,
        start_offset=from_offset,
        end_offset=to_offset,
        since_ms=None if since is None else parse_time(since),
        until_ms=None if until is None else parse_time(until),
        key=None if key is None else parse_bytes(key),
        isolation=isolation,
        topics=topic or (),
        partitions=partition or (),
        limit=limit,
        grep=None if grep is None else parse_bytes(grep),
        tail=tail,
        follow=follow,
    )
    fs = tier_place.store([*paths, index_dir, *_folders(key_as, value_as)])
    by_name = not no_decode and not (key_format or value_format or key_as or value_as)
    shown = ShownAs(*(_shown(one, fs, in_json=as_json) for one in (key_as, value_as)))
    printer: Printer
    if pattern is not None:
        printer = PatternPrinter(pattern, key_format, value_format, decode=by_name, shown=shown)
    else:
        formats = key_format or ValueFormat.UTF8, value_format or ValueFormat.UTF8
        printer = (
            JsonPrinter(*formats, decode=by_name, shown=shown)
            if as_json
            else TextPrinter(*formats, full=full, decode=by_name, shown=shown)
        )
    output = sys.stdout.buffer

    def write(lines: bytes) -> None:
        output.write(lines)
        output.flush()

    dumping = Dump(choice, printer, write, fs=fs, index_dir=index_dir)
    try:
        dumping.run([named(path) for path in paths])
    except BrokenPipeError:
        give_up_output()  # the output's reader has quit; damage shown before that still sets the exit status
    if dumping.damaged:
        return EXIT_DAMAGE
    return EXIT_REQUEST if dumping.unreadable else EXIT_OK


def _folders(*decoders: str | None) -> list[str]:
    """Return the schema folders of the decoders."""
    return [folder for one in decoders if one is not None and (folder := schema_folder(one))]


def _shown(decoder: str | None, fs: Store, *, in_json: bool) -> Shown | None:
    """Return how keys or values appear as a decoder renders them; schemas of a folder included.

    A value that the decoder rejects appears as `hex:00ff`, in JSON as `{"hex": "00ff"}`, as in `cli.values`.
    """
    if decoder is None:
        return None
    # These load Arrow.
    import pyarrow as pa

    from cordwood.common.json_text import json_text
    from cordwood.tables.decoders.choice import decoder_of

    chosen = decoder_of(decoder, fs)

    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        decoded = chosen.decode(pa.array([bytes(data)], pa.binary()))
        if decoded.problems:
            return f'{{"hex":"{data.hex()}"}}' if in_json else f"hex:{data.hex()}"
        value = decoded.values[0].as_py()
        if value is None:
            return "null"
        if chosen.is_json:
            return str(value)
        if isinstance(value, str):
            return json_string(value) if in_json else quoted(value.encode())
        return json_text(value)

    return Shown(shown, None)
