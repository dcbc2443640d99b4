"""Options of the jobs controller: read once, passed in, the same for all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fairlead.api.podgroups import GroupApi
from fairlead.decide.pinning import Binding


class PeerNaming(Enum):
    """How members find each other.

    ADDRESS: the ConfigMap of peers holds pod addresses and is made once every pod has one.
    DNS: it holds names of a headless service and is made before the pods.
    """

    ADDRESS = "Address"
    DNS = "Dns"


@dataclass(frozen=True, slots=True)
class JobsPolicy:
    """Durations are seconds. The defaults suit the embedded cluster.

    `cause_window_seconds` is how long the evidence of a failure is collected before the cause is
    judged, and how far apart two failures may lie to count as one. On clusters that notice a dead
    node late, peers fail first: a cause judged as the user's is revised when the node of a member
    that never ended is lost while the gang stops.
    """

    peer_naming: PeerNaming = PeerNaming.ADDRESS
    #: How members are bound on nodes without the label `names.BINDING`. None: directly everywhere,
    #: labels or not, since there is no other scheduler.
    binding: Binding | None = None
    #: A pinned member that the other scheduler refuses for longer gives its node up.
    bind_patience_seconds: float = 10.0
    #: Where kube-scheduler knows gangs; None: members of native nodes are pinned.
    groups: GroupApi | None = None
    #: Gangs up to this size are native; kube-scheduler's work for one grows with its square.
    native_members_max: int = 250
    #: A native gang that is not bound for longer gives its place up. The other scheduler tries it
    #: again by itself meanwhile, and holds nothing for it.
    native_patience_seconds: float = 60.0
    #: Pods that the API refuses for now, a full quota or a server that has just started and
    #: knows no roles yet, are tried again for this long before the attempt ends.
    held_back_patience_seconds: float = 30.0
    #: So many attempts in a row whose place kube-scheduler or kubelets refuse; after the last one
    #: the gang gives the place up and backs off.
    refusals_max: int = 3
    #: Longest wait between two tries of a job whose pods a quota or a policy refuses, or whose
    #: place is refused.
    refused_backoff_seconds_max: float = 300.0
    #: A gang that waits longer for its restart gives its nodes back meanwhile.
    backoff_hold_seconds: float = 60.0
    #: Most restarts for failures of nodes and infrastructure, whatever a job asks for.
    infrastructure_limit_max: int = 1000
    #: A pod whose creation got no answer may be made this much later: servers carry a write on for
    #: a while after its sender has given up, and so do lines that hang.
    late_pod_seconds: float = 30.0
    #: Directory of the nodes under which each job gets its checkpoints; "" gives none.
    checkpoint_root: str = ""
    #: A node that is not ready for longer counts as lost.
    node_lost_grace_seconds: float = 40.0
    #: A node that does not exist for longer counts as lost (watches of two kinds are not in step).
    node_gone_grace_seconds: float = 5.0
    cause_window_seconds: float = 2.0
    #: How long to wait for the member whose end stopped the others, when only those have ended.
    stopped_patience_seconds: float = 15.0
    #: A container that cannot be started (image, configuration) may recover for this long.
    start_error_grace_seconds: float = 60.0
    #: A member that has not started for longer, for whatever reason, ends the attempt.
    start_seconds_max: float = 1800.0
    #: A gang that is preempted and reports checkpoints may take so long to save one more.
    checkpoint_wait_seconds: float = 120.0
    #: A pod that is to go has at most so long to end, whatever it asks for.
    grace_period_seconds_max: int = 300
    #: So long before the maintenance that its provider announced a gang leaves a node.
    maintenance_drain_seconds: float = 300.0
    #: Image of the container that tests nodes before a program, and what starts it there. "": the
    #: node runs programs of the machine. None: there is none, and nothing is tested.
    preflight_image: str | None = ""
    preflight_command: tuple[str, ...] = ("fairlead",)
    #: A gang of which some members were stopped by that test waits so long for the others' results.
    preflight_patience_seconds: float = 15.0
    #: A member is a straggler whose own work in a step is so many percent, and so many standard
    #: deviations (by the median distance), above the median of its role; 0 percent: none is.
    straggler_percent: int = 20
    straggler_deviations: int = 6
    #: Over so many steps, and for so long.
    straggler_steps_min: int = 50
    straggler_seconds_min: int = 300
    #: Nodes of stragglers are suspects.
    stragglers_suspect: bool = False
    keep_finished_pods_seconds: float = 3600.0
    #: Ended jobs without a time of their own are deleted after so long, and the oldest of a
    #: namespace beyond so many. None: they stay.
    keep_finished_seconds: float | None = 86_400.0
    keep_finished_jobs_max: int | None = 2_000
    #: Mere counts of big gangs, and progress, are written at most this often.
    progress_write_seconds: float = 2.0
    #: That an element of an array runs is written when it has run for so long: of one that ends
    #: sooner the write that ends it says it all.
    short_element_seconds: float = 2.0
    #: Counts of gangs up to this size are written at once.
    small_gang_members_max: int = 32

    def binding_on(self, node: str, labelled: Mapping[str, Binding]) -> Binding:
        """Return how members are bound on a node; `labelled` are the nodes that say it."""
        return Binding.DIRECT if self.binding is None else labelled.get(node, self.binding)
