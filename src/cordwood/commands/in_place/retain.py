"""Retention after a clean in place: deletes old segments by their sizes and times after the clean."""

from __future__ import annotations

from dataclasses import replace

from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.proof.retention import RetentionLimits, retention_faults
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.commands.in_place.work import Ledger, LockedDirectories
from cordwood.commands.plan import retain_after
from cordwood.common.config import TopicConfig
from cordwood.common.threads import in_parallel
from cordwood.common.types import NONE
from cordwood.storage.changes.swap import drop_segments


def retain(site: LockedDirectories, plan: Plan, ledger: Ledger, *, verify: bool) -> Plan:
    """Delete old segments, as retention requires; return the plan with the deletions.

    Args:
        ledger: failed partitions are left alone; a partition is added if a deletion cannot be proved right.
        verify: whether to prove each deletion first.
    """
    node = site.node.listed_again()
    places = {place.path: place for place in node.places}
    loaded = {place.path for place in site.places}.difference(ledger.failures)

    def retain_one(found: PartitionPlan) -> PartitionPlan:
        path = found.path
        if path not in loaded:
            return found
        place = places[path]
        log = place.log()
        taken = retain_after(node, place, log, found, (), (), site.now_ms)
        if not taken.retained_away:
            return taken
        if verify:
            assert taken.high_watermark is not None and place.topic is not None, "or nothing would be taken"
            limits = _limits(node.config_of(place.topic), taken.high_watermark.offset, site.now_ms)
            fault = next(retention_faults(log, taken.retained_away, limits), None)
            if fault is not None:
                what = f"{path}: what retention would delete cannot be proved right, so nothing is deleted: {fault}"
                ledger.failures[path] = Failure(FailureKind.BUG, what)
                return found
        drop_segments(site.fs, path, taken.retained_away, found.log_end_offset, keep=site.keep)
        return taken

    partitions = tuple(in_parallel(site.fs.concurrency, retain_one, plan.partitions))
    return replace(plan, partitions=partitions, choices=replace(plan.choices, retention=True))


def _limits(config: TopicConfig, high_watermark: int, now_ms: int) -> RetentionLimits:
    """Return the explicitly set limits; a default deletes nothing."""

    def limit(name: str) -> int:
        return config.integer(name) if "delete" in config.policy and config[name].explicit else NONE

    return RetentionLimits(high_watermark, now_ms, limit("retention.bytes"), limit("retention.ms"))
