"""Cleaning as a conversation: text files with writes and cleans, and the log's contents afterwards.

    # case 89: a tombstone stays until delete.retention.ms after the first clean that keeps it
    log delete.retention.ms=1000
    write [a=1 b=1] [a=∅] | [c=1] |
    clean now=10
    → 0: [0..1 b=1@1] [2 a=∅@2 horizon=1010] [3 c=1@3]

A case starts with `#`; its number is that of docs/cases.md. Lines with → are the output of the line above;
CORDWOOD_REWRITE=1 rewrites them; review the diff.

    log KEY=VALUE …      topic configs
    write WHAT …         batches, markers and |, a roll; |15 rolls to base offset 15
    clean from=0 to=8 now=10
                         both offsets by default as the plan has them, now as before; shows the log
    clean slots=4 load=0.75
                         with Kafka's offset map of this size and load factor; also shows the offset that it reached
    counts               of the last clean
    index                contents of the indexes of all closed segments
    producers            the producer states of a broker that loads the log from its first offset on
    clock MS             moves the broker's clock
    mtime BASE MS        sets when a segment was modified
    expire               forgets producers

    [a=1 b=∅ =2]         a batch: keys and values, ∅ for a tombstone, nothing for no key; a=1^5 at time 5
    p1[…] t1[…]          of an idempotent or transactional producer; p1/2 in epoch 2; p1:5 from sequence 5
    gzip[…] late[…]      compressed; with append times
    m1[…] m1gzip[…]      in magic 1, or 0
    @7[…] […]+2          from offset 7 on; with a last offset 2 above that of its last record
    C1 A1 C1/2           markers of producer 1: commit, abort, in epoch 2
"""

from __future__ import annotations

from pathlib import Path


def cases(text: str) -> dict[str, list[str]]:
    """The cases of a file, by their headings: their lines without the output."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            found[line[2:]] = []
        elif line and not line.startswith("→"):
            found[list(found)[-1]].append(line)
    return found


FOLDER = Path(__file__).parent / "cases"
