"""A topic's config may have any of several names in a broker's configs; every command that explains configs accepts all
of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cordwood
from cordwood.commands.options import Selection, WhyOptions
from cordwood.common.config import TOPIC_CONFIGS, Type
from cordwood.view.partition_look import look_at_partition, options_for
from tests.fixtures import fixture

CASES = [
    (definition.name, synonym.name, synonym.scale)
    for definition in TOPIC_CONFIGS.values()
    for synonym in definition.synonyms
]
#: Values for configs whose default proves little, or is not valid in a file.
TEXTS = {"cleanup.policy": "compact", "retention.bytes": "7", "message.timestamp.type": "LogAppendTime"}


def text_of(name: str, scale: int) -> str:
    """A value that a server.properties may have."""
    definition = TOPIC_CONFIGS[name]
    if definition.type is Type.BOOLEAN:
        return "true"
    return TEXTS.get(name) or str(2 if scale > 1 else definition.default)


@pytest.mark.parametrize(("name", "synonym", "scale"), CASES)
def test_every_command_that_explains_takes_a_config_by_any_synonym(
    name: str, synonym: str, scale: int, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.cleanup.policy=compact,delete\n{synonym}={text_of(name, scale)}\n")
    path = str(fixture("kraft-jbod-before") / "b" / "disk-0-0")
    assert cordwood.ls(path, server_properties=file).partitions
    plan = cordwood.plan(path, retention=True, server_properties=file)
    said = {one.name: one.source for one in plan.partitions[0].settings}
    where = f"server.properties: {file}" if synonym == name else f"{synonym}, server.properties: {file}"
    assert said.get(name, where) == where
    assert cordwood.why(path, server_properties=file).text()
    options = WhyOptions(selection=Selection(server_properties=str(file)))
    assert look_at_partition(path, options_for(path, options, None)).plan.text()
