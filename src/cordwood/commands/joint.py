"""Joint cleans: all replicas of a partition are cleaned over the same range, and lose the same tombstones and markers.

A broker cleans its replica alone. If it drops a tombstone before another replica has it, the deleted key can reappear.
So a clean of one broker's directories keeps expired tombstones. If the user gives the directories of all replicas, and
no broker runs on them, the replicas agree:

    range      from the lowest first dirty offset to the lowest end of all replicas' own ranges; never above the lowest
               high watermark, below which all replicas have every record
    decision   all are cleaned if one of them is dirty enough
    horizon    the latest horizon of all replicas counts; see `in_place.horizon`

If a replica is missing, in use or damaged, each of the others is cleaned by itself, and keeps its tombstones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cordwood.cleaning.rules.plan import AgreedRange, Bound, Compaction, Decision, PartitionPlan, Reason
from cordwood.commands.why.facts import PlannedPartition
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.cluster_metadata import PartitionReplicas
from cordwood.storage.node.cluster import Cluster, Replica, brokers_text

#: Plans a replica over an agreed range.
Replan = Callable[[Replica, PlannedPartition, AgreedRange], PartitionPlan]
TOMBSTONES_STAY = "expired tombstones and markers stay"


def with_joint_plans(
    cluster: Cluster,
    planned: Mapping[str, PlannedPartition],
    replan: Replan,
    unable: Mapping[str, str],
) -> dict[str, PartitionPlan]:
    """Return the plan of each partition directory, by path, with joint plans where all replicas take part.

    Args:
        planned: the plan of each replica by itself, by path; only those of selected partitions.
        unable: why a replica cannot take part, by path of its directory, or by the name of its broker.

    Raises:
        RequestError: `--single-copy` is given, but several brokers have a partition.
    """
    found = {path: one.plan for path, one in planned.items()}
    for name in cluster.partitions:
        replicas = [one for one in cluster.replicas(name) if one.path in planned]
        if not any(planned[one.path].plan.compaction is not None for one in replicas):
            continue
        assigned = cluster.assignment(name)
        if assigned is not None and len(assigned.replicas) == 1 and len(replicas) == 1:
            continue
        if len(replicas) > 1 and any(planned[one.path].plan.deletes_for_good for one in replicas):
            have = brokers_text([one.broker for one in replicas])
            raise RequestError(f"--single-copy: {name} is in the directories of {have}, so it has no single copy")
        reason = next(_reasons_against(cluster, name, assigned, replicas, planned, unable), None)
        if reason is None:
            joint = _joint_plans(replicas, planned, replan)
            refused = next((one for one in replicas if joint[one.path].decision is Decision.REFUSE), None)
            if refused is None:
                found |= joint
                continue
            reason = f"broker {refused.broker} takes no part: {joint[refused.path].reason.what} ({refused.path})"
        for one in replicas:
            plan = found[one.path]
            if plan.compaction is not None and not plan.deletes_for_good:
                found[one.path] = replace(plan, notes=(*plan.notes, f"{TOMBSTONES_STAY}: {reason}"))
    return found


def _reasons_against(
    cluster: Cluster,
    name: TopicPartition,
    assigned: PartitionReplicas | None,
    replicas: Sequence[Replica],
    planned: Mapping[str, PlannedPartition],
    unable: Mapping[str, str],
) -> Iterator[str]:
    """Yield reasons why the replicas of a partition cannot be cleaned jointly."""
    if assigned is None:
        yield "no metadata shows its replicas; give --metadata DIR, with __cluster_metadata-0"
        return
    here = {one.node.node_id for one in replicas}
    for broker in assigned.replicas:
        if broker in here:
            continue
        if str(broker) in unable:
            yield f"broker {broker} takes no part: {unable[str(broker)]}"
        else:
            yield f"no directory of {brokers_text([broker])} is given, which has a replica by the metadata"
    if others := sorted(str(one) for one in here.difference(assigned.replicas)):
        known = brokers_text(assigned.replicas)
        yield f"a directory of {brokers_text(others)} has it, but by the metadata only {known} do"
    for one in replicas:
        for why in _reasons_of(one, planned[one.path], unable):
            yield f"broker {one.broker} takes no part: {why} ({one.path})"


def _reasons_of(replica: Replica, planned: PlannedPartition, unable: Mapping[str, str]) -> Iterator[str]:
    directory, plan = replica.place.directory, planned.plan
    if replica.path in unable:
        yield unable[replica.path]
    if directory.failure is not None:
        yield str(directory.failure)
    if plan.decision is Decision.REFUSE:
        yield plan.reason.what
    elif planned.obstacle is not None or plan.compaction is None or planned.facts is None:
        yield str(plan.reason)


def _joint_plans(
    replicas: Sequence[Replica], planned: Mapping[str, PlannedPartition], replan: Replan
) -> dict[str, PartitionPlan]:
    own = [(one, planned[one.path].plan.compaction) for one in replicas]
    agreed = agreed_range([(one.broker, compaction) for one, compaction in own if compaction is not None])
    plans = {one.path: replan(one, planned[one.path], agreed) for one in replicas}
    dirty = next((one for one in replicas if plans[one.path].decision is Decision.CLEAN), None)
    if dirty is None:
        return plans
    because = plans[dirty.path].reason
    for path, plan in plans.items():
        assert plan.compaction is not None, "a joint plan has one"
        if plan.decision is Decision.LEAVE and plan.compaction.groups:
            reason = Reason(f"like the replica of broker {dirty.broker}: {because.what}", because.source)
            plans[path] = replace(plan, decision=Decision.CLEAN, reason=reason)
    return plans


def agreed_range(own: Sequence[tuple[str, Compaction]]) -> AgreedRange:
    """Return the range that all replicas can clean.

    Args:
        own: (broker, compaction) of each replica by itself.
    """
    _, first = min(own, key=lambda one: one[1].range.first_dirty_offset)
    broker, last = min(own, key=lambda one: one[1].range.first_uncleanable_offset)
    end, why = last.range.first_uncleanable_offset, last.bound_reason
    alike = all(one.range.first_uncleanable_offset == end for _, one in own)
    return AgreedRange(
        first.range.first_dirty_offset,
        end,
        first.first_dirty_reason,
        why if alike else replace(why, what=f"the replica of broker {broker} can be cleaned no further: {why.what}"),
        last.range.bound if alike else Bound.REPLICAS,
    )
