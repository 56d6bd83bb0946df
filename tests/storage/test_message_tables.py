"""The tables of Kafka's messages: their contents, and that they equal Kafka's own definitions in its jars."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import pytest

from cordwood.common.types import ControlType
from cordwood.storage.formats.messages.coordinator_records import ASSIGNMENT, SUBSCRIPTION
from cordwood.storage.formats.messages.metadata_records import CONTROL_RECORDS
from cordwood.storage.formats.messages.schema import NEVER, Field, read_table
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS
from tests.kafka_tools import jars
from tests.storage.messages import all_messages, our_word

TABLE = """
Thing 7
  key
    name        string
  value 1-3 flexible 2+
    struct Pair
      left      int16
      right     int16     2+  = -1
    flag        bool          = true
    pairs       []Pair
    old         int64     1
    names       []string? 2+  tag 5 = null
    inner       {}?
      text      string?       = null
"""


def test_a_table_says_types_versions_nulls_tags_and_defaults() -> None:
    (thing,) = read_table(TABLE).values()
    assert (thing.name, thing.number) == ("Thing", 7)
    assert thing.key is not None
    assert (thing.key.name, thing.key.flexible_from) == ("ThingKey", NEVER)
    assert thing.key.fields == (Field("name", "string", default=""),)
    value = thing.value
    assert (value.name, value.first_version, value.last_version, value.flexible_from) == ("ThingValue", 1, 3, 2)
    pair = (Field("left", "int16", default=0), Field("right", "int16", 2, default=-1))
    text = Field("text", "string", nullable=True)
    assert value.fields == (
        Field("flag", "bool", default=True),
        Field("pairs", "[]struct", default=(), fields=pair),
        Field("old", "int64", 1, 1, default=0),
        Field("names", "[]string", 2, nullable=True, tag=5),
        Field("inner", "struct", nullable=True, default={"text": None}, fields=(text,)),
    )


def test_record_types_have_the_numbers_and_names_of_their_topic() -> None:
    for topic in INTERNAL_TOPICS.values():
        assert [one.number for one in topic.records.values()] == list(topic.records)
        assert len({one.name for one in topic.records.values()}) == len(topic.records)
    assert [ControlType(number) for number in CONTROL_RECORDS] == list(ControlType)[3:]


# ---- Kafka's definitions ---------------------------------------------------------------------------------------------

#: Paths in the jars of the definitions of internal topics' records, and of paths with other definitions.
DEFINITIONS = {
    "kafka-group-coordinator": "common/message/",
    "kafka-transaction-coordinator": "common/message/",
    "kafka-share-coordinator": "common/message/",
    "kafka-metadata": "common/metadata/",
    "kafka-storage": "message/",
}
OTHERS = {"ProducerSnapshot"}
#: Definitions among those of clients and brokers that are used in these topics.
IN_CLIENTS = {
    one.name
    for one in (
        SUBSCRIPTION,
        ASSIGNMENT,
        *(record.value for record in CONTROL_RECORDS.values()),
    )
}
Definition = Mapping[str, Any]
COMMENT = re.compile(r"^\s*//.*$|(?<=[,{}\[\]])\s*//.*$", re.MULTILINE)


def definitions() -> dict[str, Definition]:
    """Kafka's definition of each message that is in an internal topic."""
    found: dict[str, Definition] = {}
    for jar in jars():
        module = re.sub(r"-[0-9.]+\.jar", "", jar.name)
        folder = DEFINITIONS.get(module, "common/message/" if module == "kafka-clients" else None)
        if folder is None:
            continue
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith(folder) and name.endswith(".json"):
                    text = COMMENT.sub("", archive.read(name).decode())
                    one = json.loads(text)
                    if module != "kafka-clients" or one["name"] in IN_CLIENTS:
                        found[one["name"]] = one
    return {name: one for name, one in found.items() if name not in OTHERS}


def is_in(version: int, text: str) -> bool:
    """Whether a range such as 3+, 1-2, 0 or none has a version."""
    if text == "none":
        return False
    first, _, last = text.partition("-")
    return int(first.rstrip("+")) <= version and (text.endswith("+") or version <= int(last or first))


#: A field in one version: name, type, whether it may be null, tag, default, fields; only name and default if the
#: version lacks it.
Shape = tuple[object, ...]
_ZEROS = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": "A" * 22}
_WORDS = {"null": None, "true": True, "false": False}


def our_shape(one: Field, version: int) -> Shape:
    if not one.is_in(version):
        return one.name, one.default
    inner = tuple(our_shape(each, version) for each in one.fields)
    return one.name, one.type, one.nullable, one.tag, one.default, inner


def kafkas_shape(one: Definition, structs: Mapping[str, Definition], version: int) -> Shape:
    name, array, item = our_word(one["name"]), "[]" * one["type"].startswith("[]"), one["type"].removeprefix("[]")
    fields = one.get("fields") or (structs[item]["fields"] if item in structs else ())
    default = kafkas_default(one, structs)
    if not is_in(version, one.get("versions") or one["taggedVersions"]):
        return name, default
    tag = one["tag"] if is_in(version, one.get("taggedVersions", "none")) else None
    nullable = is_in(version, one.get("nullableVersions", "none"))
    inner = tuple(kafkas_shape(each, structs, version) for each in fields)
    return name, array + ("struct" if fields else item), nullable, tag, default, inner


def kafkas_default(one: Definition, structs: Mapping[str, Definition]) -> object:
    item, default = one["type"].removeprefix("[]"), one.get("default")
    # A JSON null is no default; the word null is.
    if default is not None:
        return _WORDS[default] if default in _WORDS else int(default)
    if one["type"].startswith("[]"):
        return ()
    fields = one.get("fields") or (structs[item]["fields"] if item in structs else ())
    if fields:
        return {our_word(each["name"]): kafkas_default(each, structs) for each in fields}
    return _ZEROS.get(item, 0)


@pytest.mark.kafka
def test_the_tables_are_those_of_kafkas_definitions(kafka_oracle: object) -> None:
    kafkas, ours = definitions(), {message.name: message for message in all_messages()}
    assert set(kafkas) == set(ours)
    numbers = {
        message.name: one.number
        for topic in INTERNAL_TOPICS.values()
        for one in topic.records.values()
        for message in (one.key, one.value)
        if message is not None
    }
    for name, one in kafkas.items():
        message = ours[name]
        structs = {each["name"]: each for each in one.get("commonStructs", ())}
        assert numbers.get(name) == one.get("apiKey"), name
        for version in range(-1, message.last_version + 3):
            is_known = message.first_version <= version <= message.last_version
            assert is_known == is_in(version, one["validVersions"]), (name, version)
            if is_known:
                assert (version >= message.flexible_from) == is_in(version, one["flexibleVersions"]), (name, version)
                shape = tuple(kafkas_shape(each, structs, version) for each in one["fields"])
                assert tuple(our_shape(each, version) for each in message.fields) == shape, (name, version)
    assert len(kafkas) > 80
