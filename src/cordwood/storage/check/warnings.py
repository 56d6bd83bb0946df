"""Warnings about a broker's next start, from names, small files and the metadata log: no other log is read."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.common.errors import CordwoodError
from cordwood.fs.base import Store
from cordwood.storage.check.findings import NO_START, Finding, Findings, Kind, Severity
from cordwood.storage.check.node import nodes_of
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.node.node import Node


def warnings(node: Node, *, by_request: bool = False) -> list[Finding]:
    """Return the damage that keeps a broker from serving a node's partitions: strays, missing files and directories.

    Args:
        by_request: check an object store, too, although each small file takes a request.
    """
    if not by_request and node.fs.reads_by_request(node.directories[0].path if node.directories else ""):
        return []  # each small file would take a request
    findings = Findings()
    for one in nodes_of(node.fs, [directory for directory in node.directories if directory.is_brokers]):
        if one.live:
            continue
        one.check_directories(findings)
        for error in () if one.metadata is None else one.metadata.passed_over[:1]:
            path = error.path or one.directories[0].path
            findings.add(Kind.METADATA_LOG, path, error.what, position=error.position, meaning=NO_START)
        for place in node.places:
            if place.directory in one.directories and place.name is not None and not place.name.state:
                if place.names_topic() and place.topic_id() is None:
                    continue  # the file is unreadable or invalid; `check` reports the error
                topic_id = place.topic_id()
                known = None if topic_id is None else encode_id(topic_id)
                one.check_topic_id(place.name.topic_partition, place.path, known, findings)
        list(one.check_missing(findings))
    return [finding for finding in findings.take() if finding.severity is Severity.DAMAGE and finding.effect]


def text(finding: Finding) -> str:
    """Return a warning as one line of text."""
    return f"{finding.path}: {finding.what}. Because of this, {finding.meaning}"


def texts(fs: Store, paths: Sequence[str]) -> list[str]:
    """Return the warnings about some directories as lines; empty unless a broker created the directories."""
    try:
        return [text(one) for one in warnings(Node.open(fs, paths), by_request=True)]
    except (CordwoodError, OSError):
        return []  # a later read of the directories reports the error
