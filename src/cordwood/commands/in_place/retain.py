"""What retention deletes after a clean in place, by the sizes and times that the clean left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from cordwood.cleaning.plan import PartitionPlan, Plan
from cordwood.commands.in_place.site import Site
from cordwood.commands.options import PlanOptions, open_node
from cordwood.commands.plan import retain_after
from cordwood.storage.changes.swap import drop_segments
from cordwood.threads import in_parallel


def retain(site: Site, sources: Sequence[str], options: PlanOptions, plan: Plan, failed: Collection[str]) -> Plan:
    """Delete what retention takes; returns the plan with it.

    Args:
        site: the directories.
        sources: paths that the user gave.
        options: of the user.
        plan: of the clean.
        failed: paths of partitions that are left alone.
    """
    node = open_node(site.fs, sources, options.selection)
    places = {place.path: place for place in node.places}
    loaded = {place.path for place in site.places}.difference(failed)

    def retain_one(found: PartitionPlan) -> PartitionPlan:
        path = found.path
        if path not in loaded:
            return found
        place = places[path]
        taken = retain_after(node, place, place.log(), found, (), (), site.now_ms)
        if taken.retained_away:
            drop_segments(site.fs, path, taken.retained_away, found.log_end_offset, keep=site.keep)
        return taken

    partitions = tuple(in_parallel(site.fs.concurrency, retain_one, plan.partitions))
    return replace(plan, partitions=partitions, choices=replace(plan.choices, retention=True))
