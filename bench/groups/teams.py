"""What it costs to decide which nodes change hands: 7,500 nodes, 50 teams, two changed shares.

Beside a plain loop over the nodes that does the same counting: healthy nodes by owner, what each
share lacks or has too many, and the first free nodes for those that lack some. It knows no
selectors, no blocks and no jobs.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from bench.harness import Report, cpu_slowness
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import TEAM
from fairlead.decide.teams.decide import share_out
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.asks.teams import owner_of
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_node, make_team

NODES, TEAMS, SHARE = 7_500, 50, 140
#: Nodes that one team gets more and another one less.
MOVED = 20
ROUNDS = 15


def run(report: Report) -> None:
    """Measure decision and loop in turns."""
    nodes = [
        make_node(
            f"n{i:04}", labels={"topology.kubernetes.io/zone": f"zone-{i // 160}"},
            taints=[Taint(TEAM, "NoSchedule", f"team-{i // SHARE:02}")]
            if i < TEAMS * SHARE else [],
        )
        for i in range(NODES)
    ]  # fmt: skip
    state = ClusterState.of(nodes)
    for number in range(TEAMS):
        state.team_changed(f"team-{number:02}", make_team(f"team-{number:02}", nodes=SHARE))
    costs, ratios = list[float](), list[float]()
    for number in range(ROUNDS):
        moved = MOVED if number % 2 else -MOVED
        sizes = {"team-03": SHARE - moved, "team-40": SHARE + moved}
        for team, size in sizes.items():
            state.team_changed(team, make_team(team, nodes=size))
        teams = list(state.teams)
        gc.collect()
        began = time.process_time()
        found = share_out(state, TeamsPolicy(), teams)
        seconds = time.process_time() - began
        assert len(found.changes) == MOVED, "as few as there can be"
        shares = {team.metadata.name: sizes.get(team.metadata.name, SHARE) for team in teams}
        began = time.process_time()
        assert len(_bare(nodes, shares)) == MOVED
        ratios.append(seconds / (time.process_time() - began))
        costs.append(seconds / cpu_slowness())
    report.add("teams.share_out_ratio", statistics.median(ratios), "x bare")
    report.add("teams.share_out", statistics.median(costs) * 1e3, "ms CPU")


def _bare(nodes: Sequence[Node], shares: Mapping[str, int]) -> dict[str, str]:
    """Return the new owner of each node that changes hands."""
    held, changed, free = Counter[str](), dict[str, str](), list[str]()
    for node in nodes:
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        if not ready or node.spec.unschedulable:
            continue
        owner = owner_of(node.spec.taints)
        if owner and held[owner] < shares.get(owner, 0):
            held[owner] += 1
        else:
            if owner:
                changed[node.metadata.name] = ""
            free.append(node.metadata.name)
    free.sort(key=lambda name: name not in changed)
    for team, size in sorted(shares.items()):
        for _ in range(size - held[team]):
            changed[free.pop(0)] = team
    return changed
