"""Property: what teams use, borrow and lend, kept per event, is what counting all objects gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod, Taint
from fairlead.api.names import TEAM
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import (
    make_job,
    make_member_pod,
    make_node,
    make_placement,
    make_pod,
    make_team,
)

NODES, TEAMS, SPACES = ("n0", "n1", "n2"), ("a", "b", "c"), ("a", "b", "c", "ab", "none")
nodes, teams, spaces = map(st.sampled_from, (NODES, TEAMS, SPACES))
numbers = st.integers(0, 1)


@dataclass
class Counts:
    """Nodes by team."""

    used: Counter[str] = field(default_factory=Counter)
    borrowed: Counter[str] = field(default_factory=Counter)
    lent: Counter[str] = field(default_factory=Counter)
    lent_to_jobs: Counter[str] = field(default_factory=Counter)


class TeamUsesMachine(RuleBasedStateMachine):
    """Nodes change hands, teams and namespaces change, jobs and pods come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.owner: dict[str, str] = {}
        self.spaces: dict[str, set[str]] = {}
        self.jobs: dict[tuple[str, str], Job] = {}
        self.pods: dict[tuple[str, str], Pod] = {}

    @rule(node=nodes, team=st.sampled_from(("", *TEAMS)))
    def set_owner(self, node: str, team: str) -> None:
        taints = [Taint(TEAM, "NoSchedule", team)] if team else []
        self.owner[node] = team
        self.state.node_changed(make_node(node, taints=taints))

    @rule(node=nodes)
    def delete_node(self, node: str) -> None:
        self.owner.pop(node, None)
        self.state.node_deleted(node)

    @rule(team=teams, found=st.sets(spaces))
    def set_team(self, team: str, found: set[str]) -> None:
        found -= {"none"}
        self.spaces[team] = found
        self.state.team_changed(team, make_team(team, namespaces=sorted(found)))

    @rule(team=teams)
    def delete_team(self, team: str) -> None:
        self.spaces.pop(team, None)
        self.state.team_changed(team, None)

    @rule(space=spaces, number=numbers, places=st.none() | st.tuples(nodes, nodes),
          claim=st.sampled_from(("", "a")))  # fmt: skip
    def set_job(self, space: str, number: int, places: tuple[str, str] | None, claim: str) -> None:
        placement = make_placement(places) if places is not None else None
        job = make_job(f"job-{number}", namespace=space, count=2, placement=placement,
                       spec={"team": claim})  # fmt: skip
        self.jobs[job.metadata.key] = job
        self.state.job_changed(job)

    @rule(space=spaces, number=numbers)
    def delete_job(self, space: str, number: int) -> None:
        self.jobs.pop((space, f"job-{number}"), None)
        self.state.job_deleted((space, f"job-{number}"))

    @rule(space=spaces, number=numbers, index=numbers, node=nodes)
    def set_member(self, space: str, number: int, index: int, node: str) -> None:
        job = make_job(f"job-{number}", namespace=space, count=2)
        self._set_pod(make_member_pod(job, index, node=node))

    @rule(space=spaces, node=st.sampled_from(("", *NODES)), claim=st.sampled_from(("", *TEAMS)),
          number=numbers, phase=st.sampled_from(("Running", "Failed")))  # fmt: skip
    def set_pod(self, space: str, node: str, claim: str, number: int, phase: str) -> None:
        labels = {TEAM: claim} if claim else {}
        self._set_pod(
            make_pod(f"tool-{number}", namespace=space, node=node, phase=phase, labels=labels)
        )

    def _set_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.key] = pod
        self.state.pod_changed(pod)

    @rule(data=st.data())
    def delete_pod(self, data: st.DataObject) -> None:
        if self.pods:
            key = data.draw(st.sampled_from(sorted(self.pods)))
            del self.pods[key]
            self.state.pod_deleted(key)

    @invariant()
    def counts_are_those_of_all_objects(self) -> None:
        uses, counted = self.state.uses, self._count()
        for name in ("used", "borrowed", "lent", "lent_to_jobs"):
            assert +getattr(uses, name) == getattr(counted, name), name
            assert min(getattr(uses, name).values(), default=0) >= 0

    def _count(self) -> Counts:
        counts = Counts()
        for node, owner in self.owner.items():
            if not owner:
                continue
            by_jobs = {
                self._team(job.metadata.namespace, job.spec.team) if self.spaces else job.spec.team
                for job in self.jobs.values() if node in _nodes(job)
            }  # fmt: skip
            by_pods = {
                self._team(pod.metadata.namespace, pod.metadata.labels.get(TEAM, ""))
                for pod in self.pods.values()
                if pod.spec.node_name == node and not pod.is_terminal and not self._is_covered(pod)
            }
            others = (by_jobs | by_pods - {""}) - {owner}
            counts.used[owner] += owner in by_jobs | by_pods
            counts.borrowed.update(others)
            counts.lent[owner] += bool(others)
            counts.lent_to_jobs[owner] += bool(by_jobs - {owner})
        for name in ("used", "borrowed", "lent", "lent_to_jobs"):
            setattr(counts, name, +getattr(counts, name))
        return counts

    def _team(self, space: str, claim: str) -> str:
        if not self.spaces:
            return ""
        found = [team for team in sorted(self.spaces) if space in self.spaces[team]]
        if claim:
            return claim if claim in found else ""
        return found[0] if len(found) == 1 else ""

    def _is_covered(self, pod: Pod) -> bool:
        name, _, index = pod.metadata.name.rpartition("-1-worker-")
        job = self.jobs.get((pod.metadata.namespace, name)) if name else None
        nodes_of_job = _nodes(job) if job is not None else ()
        return bool(nodes_of_job) and nodes_of_job[int(index)] == pod.spec.node_name


def _nodes(job: Job) -> tuple[str, ...]:
    placement = job.status.placement
    return placement.roles[0].nodes if placement is not None else ()


TestTeamUses = TeamUsesMachine.TestCase
TestTeamUses.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
