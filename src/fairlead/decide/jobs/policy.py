"""Options of the jobs controller: read once, passed in, the same for all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fairlead.api.podgroups import GroupApi
from fairlead.decide.jobs.settings import JobsSettings
from fairlead.decide.pinning import Binding


class PeerNaming(Enum):
    """How members find each other.

    ADDRESS: the ConfigMap of peers holds pod addresses and is made once every pod has one.
    DNS: it holds names of a headless service and is made before the pods.
    """

    ADDRESS = "Address"
    DNS = "Dns"


#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = JobsSettings()


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
    bind_patience_seconds: float = _SETTINGS.bind_patience_seconds
    #: Where kube-scheduler knows gangs; None: members of native nodes are pinned.
    groups: GroupApi | None = None
    #: Gangs up to this size are native; kube-scheduler's work for one grows with its square.
    native_members_max: int = 250
    native_patience_seconds: float = _SETTINGS.native_patience_seconds
    held_back_patience_seconds: float = _SETTINGS.held_back_patience_seconds
    refusals_max: int = _SETTINGS.refusals_max
    refused_backoff_seconds_max: float = _SETTINGS.refused_backoff_seconds_max
    backoff_hold_seconds: float = _SETTINGS.backoff_hold_seconds
    infrastructure_limit_max: int = _SETTINGS.infrastructure_limit_max
    #: A pod whose creation got no answer may be made this much later: servers carry a write on for
    #: a while after its sender has given up, and so do lines that hang.
    late_pod_seconds: float = 30.0
    #: Directory of the nodes under which each job gets its checkpoints; "" gives none.
    checkpoint_root: str = ""
    node_lost_grace_seconds: float = _SETTINGS.node_lost_grace_seconds
    #: A node that does not exist for longer counts as lost (watches of two kinds are not in step).
    node_gone_grace_seconds: float = 5.0
    cause_window_seconds: float = 2.0
    #: How long to wait for the member whose end stopped the others, when only those have ended.
    stopped_patience_seconds: float = 15.0
    start_error_grace_seconds: float = _SETTINGS.start_error_grace_seconds
    start_seconds_max: float = _SETTINGS.start_seconds_max
    checkpoint_wait_seconds: float = _SETTINGS.checkpoint_wait_seconds
    grace_period_seconds_max: int = _SETTINGS.grace_period_seconds_max
    maintenance_drain_seconds: float = _SETTINGS.maintenance_drain_seconds
    #: Image of the container that tests nodes before a program, and what starts it there. "": the
    #: node runs programs of the machine. None: there is none, and nothing is tested.
    preflight_image: str | None = ""
    preflight_command: tuple[str, ...] = ("fairlead",)
    #: A gang of which some members were stopped by that test waits so long for the others' results.
    preflight_patience_seconds: float = 15.0
    straggler_percent: int = _SETTINGS.straggler_percent
    straggler_deviations: int = _SETTINGS.straggler_deviations
    straggler_steps_min: int = _SETTINGS.straggler_steps_min
    straggler_seconds_min: int = _SETTINGS.straggler_seconds_min
    stragglers_suspect: bool = _SETTINGS.stragglers_suspect
    keep_finished_pods_seconds: float = _SETTINGS.keep_finished_pods_seconds
    keep_finished_seconds: float | None = _SETTINGS.keep_finished_seconds
    keep_finished_jobs_max: int | None = _SETTINGS.keep_finished_jobs_max
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
