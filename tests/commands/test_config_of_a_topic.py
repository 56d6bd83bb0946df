"""Configs for one topic, given to a command: of a topic that is nowhere, or in another directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.commands.options import Selection, WhyOptions
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.view.partition_look import look_at_partition, options_for
from tests.fixtures import copy_of, fixture

JBOD = "kraft-jbod-before"


@pytest.mark.parametrize(
    "command", [cordwood.ls, cordwood.plan, cordwood.why, cordwood.clean_in_place], ids=lambda one: one.__name__
)
def test_a_config_of_a_topic_that_is_nowhere_is_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    directory = copy_of(fixture(JBOD), tmp_path / "jbod")
    before = sorted(directory.rglob("*"))
    for topic, words in {"disk-O": "overrides= disk-O; did you mean disk-0?", "x": "matches overrides= x$"}.items():
        with pytest.raises(NotFoundError, match=words):
            command(str(directory), overrides=["disk-0:retention.ms=1000", f"{topic}:retention.ms=-1"])
    assert [path for path in sorted(directory.rglob("*")) if path.name != ".lock"] == before


def test_a_config_of_a_topic_in_the_metadata_alone_is_taken(tmp_path: Path) -> None:
    directory = copy_of(fixture(JBOD), tmp_path / "jbod")
    overrides = ["disk-0:retention.ms=1000", "disk-1:retention.ms=-1"]
    listing = cordwood.ls(str(directory / "b"), metadata=str(directory / "a"), overrides=overrides)
    assert {one.name for one in listing.partitions} >= {"disk-0-0"}


@pytest.mark.parametrize("path", ["a/disk-1-0", "b/disk-0-0"])
def test_a_partition_is_looked_at_under_configs_of_topics_elsewhere(path: str, tmp_path: Path) -> None:
    copy_of(fixture(JBOD) / path, tmp_path / path)
    options = WhyOptions(
        selection=Selection(overrides=["disk-0:cleanup.policy=delete", "disk-1:cleanup.policy=delete"])
    )
    look = look_at_partition(str(tmp_path / path), options_for(str(tmp_path / path), options, None))
    assert look.listing.policy.value == ("delete",)


@pytest.mark.parametrize(
    ("overrides", "against"), [("disk-1:retention.ms=1", ()), ("retention.ms=1", ("x:retention.ms=1",))]
)
def test_explain_takes_configs_of_the_explained_topic_alone(overrides: str, against: Sequence[str]) -> None:
    with pytest.raises(RequestError, match="is not for disk-0, the topic that is explained"):
        cordwood.explain(str(fixture(JBOD)), topics=["disk-0"], overrides=[overrides], against=against)
