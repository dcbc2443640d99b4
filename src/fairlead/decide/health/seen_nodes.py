"""What follows from the faults of each open node, kept from one decision to the next.

In a storm thousands of nodes have faults, of which one changes at a time. What a node asks for
follows from its view, and a view lasts until one of its fields changes: so a decision judges the
views that are others than before, and adds up what changed. A decision that remembers nothing finds
the same (`tests/property/test_health.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.names import POOL, ZONE
from fairlead.decide.health.need import Need, need_of
from fairlead.decide.health.node_step import NodeView, has_taken_back
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.ledger import Charge
from fairlead.decide.removal.removals import WaitingRemovals


def charge_of(view: NodeView, need: Need) -> Charge:
    """Return what it is charged to that a node goes out of service."""
    labels = view.node.metadata.labels
    is_idle = need.is_test and not view.is_used  # it is missed for the time of a test
    cause = RemovalCause.IDLE if is_idle else RemovalCause.REPAIR
    return Charge(labels.get(POOL, ""), labels.get(ZONE, ""), cause)


def profile_of(view: NodeView) -> str:
    """Return the name of the tuning profile of a node; "": it reports none."""
    tuning = view.report.status.tuning if view.report is not None else None
    return tuning.profile if tuning is not None else ""


@dataclass(slots=True)
class SeenNodes:
    """The open nodes as the latest decision saw them."""

    #: What faults of rules that act ask for, by name; of nodes in service alone: `candidates`.
    needs: dict[str, Need] = field(default_factory=dict[str, Need])
    candidates: dict[str, Need] = field(default_factory=dict[str, Need])
    #: What the others would ask for, where none that acts asks for anything.
    shadows: dict[str, Need] = field(default_factory=dict[str, Need])
    #: Nodes with a record, or the marks of one.
    recorded: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    #: Candidates by the uid of their node, and since when they are.
    suspects: dict[str, float] = field(default_factory=dict[str, float])
    #: The removals that are wanted of candidates, once these are confirmed.
    removals: WaitingRemovals = field(default_factory=WaitingRemovals)
    #: Nodes from which a change of a tuning profile was taken back, with the profile's name.
    taken_back: dict[str, str] = field(default_factory=dict[str, str])
    #: Candidates that wait for such a change alone, once confirmed, with the profile's name.
    _tunings: dict[str, str] = field(default_factory=dict[str, str])
    _held_profiles: frozenset[str] = frozenset()
    _unconfirmed: dict[str, float] = field(default_factory=dict[str, float])
    #: Nodes whose view is another one than the decision before saw.
    changed: tuple[str, ...] = ()
    #: How many nodes are sick by what they need.
    sick: int = 0
    _views: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    #: Nodes of which the need follows from the time as well: a fault is of a clock that is ahead.
    _unsettled: dict[str, None] = field(default_factory=dict[str, None])
    _policy: HealthPolicy | None = None
    _now: float = float("-inf")

    @property
    def doubted_since(self) -> float | None:
        """Since when the first suspect waits to be confirmed, an instant; None: none does."""
        return min(self._unconfirmed.values(), default=None)

    @property
    def held_tunings(self) -> int:
        """How many nodes wait since a change of their profile was taken back elsewhere."""
        held = self._held_profiles
        return sum(profile in held for profile in self._tunings.values()) if held else 0

    def look(
        self, nodes: Mapping[str, NodeView], policy: HealthPolicy, now: float, instant: float
    ) -> None:
        """Take in all open nodes; those whose view is the same one are not looked at again."""
        if policy is not self._policy or now < self._now:
            for name in tuple(self._views):  # since when nodes are suspected stays
                self._remove(name)
        self._policy, self._now = policy, now
        views = self._views
        again = [name for name in self._unsettled if views[name] is nodes.get(name)]
        for name in views.keys() - nodes.keys():
            self._remove(name)
        changed = [name for name, view in nodes.items() if views.get(name) is not view]
        self.changed = tuple(changed)
        for name in (*again, *changed):
            self._take(name, nodes[name], instant)
        self._hold_tunings()
        latest = instant - policy.confirm_seconds
        for name in [name for name, since in self._unconfirmed.items() if since <= latest]:
            del self._unconfirmed[name]
            if self.needs[name].is_tuning:
                self._tunings[name] = profile_of(nodes[name])
            if self._tunings.get(name) not in self._held_profiles:
                self._want(name)
        if len(self.suspects) > len(self.candidates):  # of what was looked at all over again
            kept = {nodes[name].node.metadata.uid for name in self.candidates}
            self.suspects = {uid: at for uid, at in self.suspects.items() if uid in kept}

    def _hold_tunings(self) -> None:
        """Want no more of the nodes whose profile was taken back elsewhere, and others again."""
        before, held = self._held_profiles, frozenset(self.taken_back.values())
        self._held_profiles = held
        for name, profile in self._tunings.items() if held != before else ():
            if profile in held:
                self.removals.remove(name)
            elif profile in before:
                self._want(name)

    def _want(self, name: str) -> None:
        """Want a confirmed candidate to be taken out."""
        view, need = self._views[name], self.needs[name]
        charge = charge_of(view, need)
        self.removals.put(name, view.node.metadata.uid, charge, -need.worst.severity.rank)

    def _remove(self, name: str) -> str | None:
        """Drop what follows from a node; return the uid of a suspect."""
        view = self._views.pop(name, None)
        need = self.needs.pop(name, None)
        self.sick -= need is not None and need.worst.severity.is_sick
        self.shadows.pop(name, None)
        self.recorded.pop(name, None)
        self._unsettled.pop(name, None)
        self._unconfirmed.pop(name, None)
        self._tunings.pop(name, None)
        self.taken_back.pop(name, None)
        self.removals.remove(name)
        if self.candidates.pop(name, None) is None or view is None:
            return None
        return view.node.metadata.uid

    def _take(self, name: str, view: NodeView, instant: float) -> None:
        before = self._remove(name)
        self._views[name] = view
        uid, record = view.node.metadata.uid, view.record
        is_candidate = False
        if record is not None or view.is_marked:
            self.recorded[name] = view
        if has_taken_back(view, self._now):
            self.taken_back[name] = profile_of(view)
        if not view.is_plain:
            need = self._need(name, view, acting=True)
            if need is not None:
                self.needs[name] = need
                self.sick += need.worst.severity.is_sick
                is_candidate = record is None or not record.is_out
            elif view.has_sources:
                need = self._need(name, view, acting=False)
                if need is not None:
                    self.shadows[name] = need
        if before is not None and not (is_candidate and before == uid):
            self.suspects.pop(before, None)
        if is_candidate:
            self.candidates[name] = self.needs[name]
            self._unconfirmed[name] = self.suspects.setdefault(uid, instant)

    def _need(self, name: str, view: NodeView, *, acting: bool) -> Need | None:
        assert self._policy is not None
        need = need_of(
            view.node, view.report, self._policy, self._now, acting=acting, tests=view.tests,
            change=view.change, stated=view.stated,
        )  # fmt: skip
        if need is not None and need.settled_at > self._now:
            self._unsettled[name] = None
        return need
