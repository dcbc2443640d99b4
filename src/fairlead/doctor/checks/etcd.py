"""Checks of etcd: disk latency, quota, members, load, the split of events, and what its members say
over etcd's own API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.api.cluster.cluster_report import ReportCondition
from fairlead.doctor.check import (
    IS_CRITICAL,
    IS_INFO,
    IS_WARNING,
    Check,
    MeasuredValue,
    Side,
    critical,
    info,
    warning,
)
from fairlead.doctor.checks.apiserver import writes_by_resource
from fairlead.doctor.etcd_state import EtcdMember
from fairlead.doctor.expressions import (
    CodeShare,
    Gauge,
    Increase,
    OwnGauge,
    PerSecond,
    Quantile,
    Ratio,
    Recorded,
    reads,
)
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.metrics import ALARM
from fairlead.terminal import printable

E = (Source.ETCD,)
F = (Source.FLAGS,)
P = (Source.ETCD_API,)
A = (Source.APISERVER,)
GIB = 1 << 30
QUOTA_DEFAULT = 2 * GIB
NOSPACE = OwnGauge(Source.ETCD, ALARM)
COMPACTION_DEFAULT = ("5m", "5m0s", "300s")
SPLIT_FIX = (
    "start a second etcd cluster for events (they may be lost) and set on every API server\n"
    "--etcd-servers-overrides=/events#https://EVENTS-ETCD:2379"
)
QUOTA_FIX = (
    "etcdctl compact $(etcdctl endpoint status -w json | jq .[0].Status.header.revision)\n"
    "etcdctl defrag --endpoints=MEMBER   # one member at a time, the leader last\n"
    "etcdctl alarm disarm\n"
    "and raise --quota-backend-bytes=8589934592"
)


def events_split(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether events have an etcd of their own."""
    flags = facts.seen_flags("kube-apiserver")
    overrides = flags.get("etcd-servers-overrides", "")
    is_split = "/events#" in overrides
    text = f"--etcd-servers-overrides={overrides}" if overrides else (
        "kube-apiserver has no --etcd-servers-overrides")  # fmt: skip
    yield MeasuredValue("events", 0.0 if is_split else 1.0, text)


def compaction(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the compaction interval is the default."""
    value = facts.seen_flags("kube-apiserver").get("etcd-compaction-interval", "5m0s")
    is_odd = value not in COMPACTION_DEFAULT
    yield MeasuredValue("kube-apiserver", float(is_odd), f"--etcd-compaction-interval={value}")


def members(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the number of voting members from etcd, else from the servers of the API server."""
    if facts.etcd is not None and facts.etcd.members is not None:
        voting = [each for each in facts.etcd.members if not each.is_learner]
        return (yield _tolerance(len(voting), f", {len(facts.etcd.statuses)} of them asked"))
    servers = facts.seen_flags("kube-apiserver").get("etcd-servers", "")
    if not servers:
        raise facts.missing(Source.FLAGS, "kube-apiserver has no --etcd-servers")
    count = len(servers.split(","))
    if "127.0.0.1" in servers or "localhost" in servers:
        cluster = facts.seen_flags("etcd").get("initial-cluster", "")
        count = len(cluster.split(",")) if cluster else count
    yield _tolerance(count)


def _tolerance(count: int, more: str = "") -> MeasuredValue:
    is_fragile = count % 2 == 0 or count == 1 or count > 7
    return MeasuredValue("etcd", float(is_fragile), f"{count} members{more}")


@reads(
    Source.ETCD,
    gauges=("etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes"),
)
def fragmentation(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of the database file that is not in use, for files over 100 MiB in use."""
    total = dict(facts.family(Source.ETCD, "etcd_mvcc_db_total_size_in_bytes"))
    used = dict(facts.family(Source.ETCD, "etcd_mvcc_db_total_size_in_use_in_bytes"))
    for instance, family in total.items():
        size = sum(family.now.values())
        in_use = sum(used[instance].now.values()) if instance in used else size
        share = 1 - in_use / size if size > 0 and in_use > 100 << 20 else 0.0
        yield MeasuredValue(instance, share, f"{in_use:,.0f} of {size:,.0f} bytes are in use")


@reads(Source.ETCD, gauges=("etcd_server_quota_backend_bytes",))
def default_quota(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a member's quota is the default of 2 GiB or less."""
    for reading in Gauge(Source.ETCD, "etcd_server_quota_backend_bytes")(facts):
        is_small = 0 < reading.value <= QUOTA_DEFAULT
        yield MeasuredValue(reading.subject, float(is_small), reading.evidence)


def corrupt(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a member has raised the alarm CORRUPT."""
    etcd = facts.seen_etcd()
    for alarm in facts.seen(etcd.alarms, Source.ETCD_API):
        is_corrupt = alarm.kind == "CORRUPT"
        yield MeasuredValue(
            etcd.name_of(alarm.member), float(is_corrupt), f"alarm {printable(alarm.kind)}"
        )


def _members(facts: ClusterFacts) -> tuple[EtcdMember, ...]:
    return facts.seen(facts.seen_etcd().members, Source.ETCD_API)


def unstarted(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a member was added and never started."""
    members = _members(facts)
    for each in members:
        is_unstarted = not each.name and not each.is_learner
        name = facts.seen_etcd().name_of(each.id)
        yield MeasuredValue(
            name, float(is_unstarted), f"one of {len(members)} members, without a name"
        )


def learners(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a member is a learner."""
    for each in _members(facts):
        name = facts.seen_etcd().name_of(each.id)
        yield MeasuredValue(name, float(each.is_learner), "isLearner: true")


def errors(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many errors a member reports; alarms have checks of their own."""
    for instance, status in facts.seen_etcd().statuses:
        found = [each for each in status.errors if "alarm:" not in each]
        yield MeasuredValue(instance, float(len(found)), printable("; ".join(found[:3]), 300))


def behind(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many entries of the raft log a member has not got, or not applied."""
    etcd = facts.seen_etcd()
    for instance, status in etcd.statuses:
        missing = max(etcd.index_before - status.raft_index, 0)
        unapplied = max(status.raft_index - status.raft_applied_index, 0)
        text = (f"raft index {status.raft_index:,}, applied {status.raft_applied_index:,}; a "
                f"member had {etcd.index_before:,} before")  # fmt: skip
        yield MeasuredValue(instance, float(missing + unapplied), text)


@reads(Source.APISERVER, counters=("apiserver_request_total",))
def frequent_writes(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the share of leases and events in all writes, over all API servers."""
    writes = writes_by_resource(facts)
    total = sum(writes.values())
    frequent = writes.get("leases", 0.0) + writes.get("events", 0.0)
    text = f"{frequent:,.0f} of {total:,.0f} writes a second are leases and events"
    yield MeasuredValue("writes", frequent / total if total else 0.0, text)


@reads(Source.ETCD, gauges=("etcd_server_version",))
def etcd_versions(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read members of a version with a known fault: 3.5 before 3.5.6."""
    for instance, family in facts.family(Source.ETCD, "etcd_server_version"):
        for labels, _ in family.values():
            version = labels.get("server_version", "")
            found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
            numbers = tuple(map(int, found.groups())) if found else ()
            is_bad = (3, 5, 0) <= numbers < (3, 5, 6)
            yield MeasuredValue(instance, float(is_bad), f"version {version}")


CHECKS: tuple[Check, ...] = (
    Check(
        "ETCD-04", "The etcd database is close to its quota", E,
        Ratio(Source.ETCD, "etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes"),
        (warning(0.6), critical(0.8)),
        "At the quota the cluster is read-only: node heartbeats fail, and an autoscaler may then "
        "remove every worker.",
        QUOTA_FIX, "etcd documentation, system limits; OpenAI 2018", unit="share", growth=1,
        condition=ReportCondition.ETCD_NEARLY_FULL,
    ),
    Check(
        "ETCD-06", "The etcd database reaches its quota soon", (*E, Source.RECORDED),
        Recorded(
            Source.ETCD,
            'min by (instance) ((etcd_server_quota_backend_bytes{job=~"$job"} - '
            'etcd_mvcc_db_total_size_in_bytes{job=~"$job"}) / clamp_min(deriv('
            'etcd_mvcc_db_total_size_in_bytes{job=~"$job"}[4h]), 1e-9) / 3600 and '
            'etcd_mvcc_db_total_size_in_bytes{job=~"$job"} offset 4h)',
        ),
        (warning(72), critical(4)),
        "At the quota the cluster is read-only; the growth is that of the last 4 hours.",
        "find the writer: API-19 names the resource, fairlead doctor audit FILE the caller; then "
        "as ETCD-04", "etcd mixin etcdExcessiveDatabaseGrowth", Side.BELOW, unit="hours",
    ),
    Check(
        "ETCD-08", "etcd has an active NOSPACE alarm", E,
        NOSPACE, IS_CRITICAL,
        "Every write is refused until the alarm is disarmed by hand.",
        QUOTA_FIX, "etcd FAQ", unit="bool", condition=ReportCondition.ETCD_NEARLY_FULL,
    ),
    Check(
        "ETCD-09B", "An etcd member has no leader", E,
        Gauge(Source.ETCD, "etcd_server_has_leader"), (critical(1.0),),
        "Without a leader the member serves no consistent read and no write.",
        "etcdctl endpoint status --cluster -w table   # find the member, then its disk and network",
        "etcd mixin etcdNoLeader", Side.BELOW, condition=ReportCondition.API_SERVER_DEGRADED,
    ),
    Check(
        "ETCD-01", "etcd writes its log slowly", E,
        Quantile(Source.ETCD, "etcd_disk_wal_fsync_duration_seconds"),
        (warning(0.01), critical(0.1)),
        "Writes are sequential: with 2 ms per fsync a network disk of 5,000 IOPS gives 10 % of "
        "its rate. Every API write waits for this.",
        "move the data directory to a local NVMe disk; until then:\n"
        "ionice -c2 -n0 -p $(pgrep -x etcd)",
        "etcd FAQ (p99 below 10 ms); OpenAI 2018", unit="s",
    ),
    Check(
        "ETCD-02", "etcd commits its database slowly", E,
        Quantile(Source.ETCD, "etcd_disk_backend_commit_duration_seconds"),
        (warning(0.025), critical(0.25)),
        "The disk or a neighbour on it is slow; reads wait behind the commit.",
        "move the data directory to a local NVMe disk; look for other writers on the device:\n"
        "iostat -x 1",
        "etcd FAQ (p99 below 25 ms); etcd mixin", unit="s",
    ),
    Check(
        "ETCD-15", "etcd sends a large volume to its clients", E,
        PerSecond(Source.ETCD, "etcd_network_client_grpc_sent_bytes_total"),
        (warning(100e6), critical(500e6)),
        "The API servers read whole collections from etcd: agents LIST without the cache.",
        "fairlead doctor audit /var/log/kubernetes/audit*.log   # names the callers",
        "OpenAI 2018 (500 MB/s before, almost none after)", unit="bytes/s", growth=2,
    ),
    Check(
        "ETCD-16", "Events share the main etcd", F, events_split,
        (warning(0.5, nodes_from=501), critical(0.5, nodes_from=2501)),
        "A burst of events competes with every other write.",
        SPLIT_FIX, "Kubernetes documentation, large clusters; OpenAI 2018 and 2021", unit="bool",
    ),
    Check(
        "ETCD-05", "The etcd quota is the default of 2 GiB", E, default_quota,
        (warning(0.5, nodes_from=501),),
        "A cluster of 1,000 nodes has reached 2 GiB; 8 GiB is the suggested maximum.",
        "--quota-backend-bytes=8589934592   # memory must cover the quota",
        "etcd documentation, system limits", unit="bool",
    ),
    Check(
        "ETCD-07", "Most of the etcd database file is free space", E, fragmentation,
        (warning(0.5),),
        "Free pages count towards the quota until the member is defragmented.",
        "etcdctl defrag --endpoints=MEMBER   # one at a time, the leader last; blocks that member",
        "etcd mixin; kubernetes #45037", unit="share",
    ),
    Check(
        "ETCD-09", "The etcd leader changes often", E,
        Increase(Source.ETCD, "etcd_server_leader_changes_seen_total"), (warning(3.0),),
        "A slow disk or network looks like a dead leader; each election stops writes.",
        "fix the disk (ETCD-01) or the round trip (ETCD-12) before any election timeout",
        "etcd mixin etcdHighNumberOfLeaderChanges", unit="changes",
    ),
    Check(
        "ETCD-11", "An etcd member cannot send to a peer", E,
        PerSecond(Source.ETCD, "etcd_network_peer_sent_failures_total", by=("To",),
             is_lazy=True), (warning(0.01),),
        "One more lost member can cost the quorum.",
        "etcdctl endpoint health --cluster", "etcd mixin etcdMemberCommunicationSlow", unit="/s",
    ),
    Check(
        "ETCD-12", "The round trip between etcd members is long", E,
        Quantile(Source.ETCD, "etcd_network_peer_round_trip_time_seconds", by=("To",),
                 is_lazy=True),
        (info(0.05), warning(0.15)),
        "The election timeout must be at least ten round trips.",
        "--heartbeat-interval and --election-timeout, equal on all members",
        "etcd tuning", unit="s",
    ),
    Check(
        "ETCD-13", "etcd applies requests slowly", E,
        PerSecond(Source.ETCD, "etcd_server_slow_apply_total"), (warning(1.0),),
        "Very large range reads or a slow disk hold up all writes.",
        "fairlead doctor audit FILE   # unbounded LISTs; then the disk (ETCD-01)", "etcd FAQ",
        unit="/s",
    ),
    Check(
        "ETCD-14", "etcd fails requests", E,
        CodeShare(Source.ETCD, "grpc_server_handled_total", "grpc_code", "Unavailable"),
        (warning(0.01), critical(0.05)),
        "The API server answers these with errors or repeats them.",
        "etcdctl endpoint status --cluster -w table", "etcd mixin",
        unit="share",
    ),
    Check(
        "ETCD-19", "etcd has slow watchers", E,
        Gauge(Source.ETCD, "etcd_debugging_mvcc_slow_watcher_total"), (warning(0.5),),
        "A client of etcd does not keep up; API servers are the only clients that should watch.",
        "etcdctl member list; look at the connections of port 2379", "etcd metrics",
        unit="watchers",
    ),
    Check(
        "ETCD-10", "The number of etcd members gives little tolerance", F, members, IS_WARNING,
        "An even number tolerates no more losses than one fewer; one tolerates none; more than "
        "seven make writes slow.",
        "etcdctl member list   # remove a member before you add one", "etcd FAQ", unit="bool",
    ),
    Check(
        "ETCD-17", "The compaction interval of etcd is not the default", F, compaction, IS_WARNING,
        "History that is kept for longer fills the quota.",
        "--etcd-compaction-interval=5m0s on every API server", "kube-apiserver flags",
        unit="bool",
    ),
    Check(
        "ETCD-08B", "etcd has an active CORRUPT alarm", P, corrupt, IS_CRITICAL,
        "The members' data differ: what is read depends on the member that answers. Writes are "
        "refused.",
        "stop the member that differs, remove its data, and add it again as a new member:\n"
        "etcdctl endpoint hashkv --cluster -w table   # the one whose hash differs\n"
        "etcdctl member remove ID; etcdctl member add NAME --peer-urls=URL\n"
        "etcdctl alarm disarm",
        "etcd documentation, data corruption", unit="bool",
    ),
    Check(
        "ETCD-11B", "An etcd member is behind", P, behind, (warning(1_000.0), critical(5_000.0)),
        "It reads old data, and its loss of time shows a slow disk or network. A member that has "
        "5,000 entries to apply refuses requests.",
        "its disk (ETCD-01) and its network (ETCD-12)",
        "etcd, maxGapBetweenApplyAndCommitIndex", unit="entries",
    ),
    Check(
        "ETCD-10B", "An etcd member was never started", P, unstarted, IS_WARNING,
        "It counts for the quorum and never votes: one more loss may stop all writes.",
        "start it, or etcdctl member remove ID", "etcd documentation, runtime reconfiguration",
        unit="bool",
    ),
    Check(
        "ETCD-09C", "An etcd member reports errors", P, errors, (warning(0.5),),
        "The member knows of a fault, such as that it sees no leader.",
        "etcdctl endpoint status --cluster -w json", "etcd API, StatusResponse.errors",
        unit="errors",
    ),
    Check(
        "ETCD-10C", "An etcd member is a learner", P, learners, IS_INFO,
        "It takes the log of the others and has no vote, so it adds no tolerance.",
        "etcdctl member promote ID   # once it has caught up", "etcd documentation, learners",
        unit="bool",
    ),
    Check(
        "ETCD-20", "Most writes are leases and events", A, frequent_writes,
        (info(0.5, nodes_from=5_001),),
        "They can have an etcd of their own, which takes them off the main one.",
        "--etcd-servers-overrides=/events#URL,coordination.k8s.io/leases#URL",
        "sig-scalability; EKS", unit="share",
    ),
    Check(
        "ETCD-18", "etcd has a version with a known fault", (Source.ETCD,), etcd_versions,
        IS_CRITICAL,
        "3.5.0 to 3.5.2 may lose consistency in a crash, versions before 3.5.6 may crash while "
        "they are defragmented.",
        "upgrade to 3.5.20 or newer; that is also the way to 3.6", "etcd changelog", unit="bool",
    ),
)  # fmt: skip
