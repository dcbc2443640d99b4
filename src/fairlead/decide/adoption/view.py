"""What one decision about a group sees, and the options of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.decide.adoption.actions import Action, ReadSource
from fairlead.decide.adoption.members import Expected, GroupMember, MemberCensus, Seat, expected_of
from fairlead.decide.adoption.settings import AdoptionSettings
from fairlead.decide.adoption.source_kinds import source_kind_of
from fairlead.decide.adoption.sources import SourceFacts
from fairlead.decide.attempts.backoff import doubled
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.record import End, newest_version
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.verdict import Decision
from fairlead.model.gang.phase import OPEN, phase_of
from fairlead.model.pools.grouping import Group, GroupSource, Tool

#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = AdoptionSettings()


@dataclass(frozen=True, slots=True)
class AdoptionPolicy:
    """Durations are seconds."""

    bind_patience_seconds: float = _SETTINGS.bind_patience_seconds
    bare_patience_seconds: float = _SETTINGS.bare_patience_seconds
    refusals_max: int = _SETTINGS.refusals_max
    #: Wait of a group that was refused so often before it queues again; doubles each time.
    again_seconds: float = 10.0
    again_seconds_max: float = _SETTINGS.again_seconds_max
    #: A seat without a member gives its node back after so long; sooner where its member ended well
    #: and no other one comes (`idle_seconds_max`). Tools wait up to 360 s before they create a
    #: failed pod again (Kubernetes, Job controller, `MaxJobPodFailureBackOff` and kin).
    vacant_seconds_max: float = 600.0
    idle_seconds_max: float = _SETTINGS.idle_seconds_max
    #: First pause between readings of a group's owner while it is waited for; doubles each time.
    read_seconds: float = 1.0
    read_seconds_max: float = 60.0
    #: A pod that is to go has at most so long to end, whatever it asks for.
    grace_period_seconds_max: int = 300
    #: Mere counts of big gangs are written at most this often.
    count_seconds: float = 2.0
    small_gang_members_max: int = 32
    keep_finished_seconds: int = _SETTINGS.keep_finished_seconds


@dataclass(frozen=True, slots=True)
class SourceReading:
    """What was read of a group's source, when, and how often in vain since then."""

    facts: SourceFacts
    at: float
    count: int = 1

    def next_at(self, policy: AdoptionPolicy) -> float:
        """Return when it is worth reading again."""
        return self.at + doubled(policy.read_seconds, self.count - 1, policy.read_seconds_max)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The input of `decide_group`. Nothing here is changed by a decision.

    `usable` holds every node: True when a pod may be bound there now. What `reading`, `idle_since`,
    `empty_since` and `counts_written_at` say may be lost: it is then observed again.
    """

    key: tuple[str, str]
    group: Group | None
    members: Mapping[str, GroupMember] = field(default_factory=dict)
    job: Job | None = None
    reading: SourceReading | None = None
    usable: Mapping[str, bool] = field(default_factory=dict)
    #: Since when no member of the group is alive.
    idle_since: float | None = None
    counts_written_at: float = 0.0
    #: Since when each seat of the placement that has no live member has none.
    empty_since: Mapping[Seat, float] = field(default_factory=dict[Seat, float])
    #: Members that have a job of their own, by role.
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    #: True when its placement counts as given back, though the API refuses to record that.
    is_forfeited: bool = False


@dataclass(frozen=True, slots=True)
class GroupContext:
    """A group that has a job, its members sorted out, and what decides about it."""

    view: GroupView
    job: Job
    census: MemberCensus
    policy: AdoptionPolicy
    now: float

    @property
    def draft(self) -> StatusDraft:
        """Return the status to go on from."""
        return StatusDraft.of(self.job, self.now)

    @property
    def is_open(self) -> bool:
        """True while the record of the current attempt is open."""
        return phase_of(self.job) in OPEN

    def end(self, reason: EndReason, message: str, nodes_lost: Iterable[str] = ()) -> End:
        """Return an end of the current attempt, with the version that its pods have reached."""
        version = newest_version(member.pod for member in self.view.members.values())
        return End(reason, message, nodes_lost=tuple(nodes_lost), pods_version=version)

    @property
    def source(self) -> GroupSource | None:
        """Return the object that gives the size of the group, if there is one that is read."""
        return readable(self.view.group)

    @property
    def tool(self) -> Tool:
        """Return whose group it is."""
        return self.view.group.tool if self.view.group else Tool.NAMED

    @property
    def owner(self) -> str:
        """Return what people call the owner, such as "StatefulSet web"."""
        adopts = self.job.spec.adopts
        assert adopts is not None
        return f"{adopts.kind} {adopts.name}"

    @property
    def facts(self) -> SourceFacts | None:
        """Return what was read of the source."""
        return self.view.reading.facts if self.view.reading else None

    @property
    def expected(self) -> Expected:
        """Return how many members there should be, as far as pods or owner say it."""
        return expected_of(self.census, self.facts, self.view.elsewhere)

    @property
    def next_read_at(self) -> float | None:
        """Return when it is worth reading the source (again); None when it cannot be read."""
        if self.source is None:
            return None
        return self.view.reading.next_at(self.policy) if self.view.reading else self.now

    def read(self) -> Decision[Action]:
        """Return the decision to read the source now; the group is looked at again after that."""
        source = self.source
        assert source is not None
        return Decision((read_of(self.view.key, source),))


def readable(group: Group | None) -> GroupSource | None:
    """Return the object behind a group, if it is of a kind that is read."""
    source = group.source if group is not None else None
    if source is None or not source.name:
        return None
    return source if source_kind_of(source.api_version, source.kind) is not None else None


def read_of(key: tuple[str, str], source: GroupSource) -> ReadSource:
    """Return the reading of the source of a group."""
    return ReadSource(key, source.api_version, source.kind, source.name)
