"""Finds every inconsistency in Kafka's files, with its position and its consequence for a broker.

    findings    kinds of findings, with severity and meaning
    batches     one .log file: batches, their order, and their records
    indexes     offset, time, transaction and key index against the log
    state       producer snapshots and leader epochs against the log
    partition   all files of one partition
    sampling    the parts of a large segment that a quick check reads
    permissions files that a broker may not read or write
    directory   log directories: checkpoints, names, duplicate partitions
    node        a broker's log directories together, and the cluster's metadata
    cluster     the metadata logs of several brokers against each other
    tier        the tier of a log directory against the brokers' metadata about it
    placement   directories and partitions where their node has them; warnings before a command begins

The check is read-only, and an error in one partition does not stop the check of other partitions.
"""

from cordwood.storage.check.directory import Check, CheckResult, Summary
from cordwood.storage.check.findings import KINDS, Behind, Finding, Kind, Severity

__all__ = ["KINDS", "Behind", "Check", "CheckResult", "Finding", "Kind", "Severity", "Summary"]
