"""Facts that brokers reported of their topics, to compare with the metadata log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.fixtures import NAMES, facts

#: Those of brokers with a metadata log; the old ones kept theirs in ZooKeeper, outside of the fixture.
WITH_METADATA = [name for name in NAMES if not name.startswith("legacy") or name.endswith("4.3.1")]
#: Deleted while the broker ran: leftovers are `-delete` and `-stray` directories.
DELETED = re.compile("go+ne|astray")
INTERNAL = {"__consumer_offsets", "__transaction_state"}
#: The facts have configs as of a topic's creation; these are later changes, by fixture and topic.
CHANGED_LATER = {
    "kraft-crashed-(clean|swap).* crash$": {"internal.segment.bytes": "1048576"},
    ".* configured$": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.3",
        "delete.retention.ms": "5000",
    },
}


def facts_of_topics(name: str) -> Iterator[tuple[str, int, dict[str, str]]]:
    """For each topic its name, partitions, and final configs."""
    family = re.match("kraft-(?:classic|crashed|jbod)|kraft|other-clients|legacy-[a-z0-9]+", name)
    assert family is not None
    for topic_name, said in facts(family[0])["topics"].items():
        if isinstance(said, int):  # kraft-jbod
            said = {"partitions": said, "config": {"cleanup.policy": "compact", "internal.segment.bytes": "2500"}}
        texts = {key: str(text) for key, text in said["config"].items()}
        for pattern, changed in CHANGED_LATER.items():
            if re.match(pattern, f"{name} {topic_name}"):
                texts |= changed
        if name.endswith("4.3.1"):  # has no formats to choose from, and no small segments under the old name
            texts.pop("message.format.version", None)
            if int(texts["segment.bytes"]) < 1 << 20:
                texts["internal.segment.bytes"] = texts.pop("segment.bytes")
        yield topic_name, said["partitions"], texts
