"""Deciding object by object: what is looked at, bounds, wake-ups, faults that stay contained."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.resources import CONFIG_MAPS
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.keyed_controller import KeyedDecider, KeyedOptions, part_key
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.set_aside import STRICT, AsideEntry, AsideStage, SetAside
from fairlead.testing.builders import EPOCH
from fairlead.testing.fake_client import FakeClient

A, B, C, D = ("ns", "a"), ("ns", "b"), ("ns", "c"), ("ns", "d")


class Decider:
    """Answers with one action per object; raises over those in `broken`."""

    def __init__(self, set_aside: SetAside, options: KeyedOptions | None = None) -> None:
        mirror: Mirror[ConfigMap] = Mirror(
            FakeClient(), CONFIG_MAPS, clock=LoopClock(EPOCH), rng=random.Random(1)
        )
        self.looked: list[ObjectKey] = []
        self.broken: set[ObjectKey] = set()
        self.gone: set[ObjectKey] = set()
        self.wake_at: float | None = None
        self.instant = 0.0
        self.set_aside = set_aside
        self.keyed: KeyedDecider[str] = KeyedDecider(
            mirror, self._one, set_aside=set_aside, on_fault=self._report, options=options,
            instant=lambda: self.instant,
        )  # fmt: skip

    def _one(self, key: ObjectKey, now: float) -> Decision[str] | None:
        self.looked.append(key)
        if key in self.broken:
            raise ValueError(key[1])
        if key in self.gone:
            return None
        verdict = Verdict(Reason.PENDING_EVALUATION)
        return Decision((f"act on {key[1]}",), {key: verdict}, self.wake_at)

    def _report(self, entry: AsideEntry, now: float) -> Sequence[str]:
        return (f"report {entry.metadata.name}: {entry.fault}",)

    def decide(self, now: float = EPOCH) -> Decision[str]:
        self.looked.clear()
        return self.keyed.decide(now)


def test_only_what_is_marked_is_looked_at_once_and_in_key_order() -> None:
    world = Decider(STRICT)
    for key in (B, A, B):
        world.keyed.mark(key)
    decision = world.decide()
    assert world.looked == [A, B]
    assert decision.actions == ("act on a", "act on b")
    assert set(decision.verdicts) == {A, B}
    assert decision.wake_at is None
    assert world.decide().actions == ()


def test_an_object_is_looked_at_again_at_its_instant_and_the_decision_names_the_earliest() -> None:
    world = Decider(STRICT)
    world.wake_at = EPOCH + 60
    world.keyed.mark(A)
    world.keyed.mark_at(B, EPOCH + 30)
    assert world.decide().wake_at == EPOCH + 30
    world.wake_at = None
    assert world.decide(EPOCH + 30).wake_at == EPOCH + 60
    assert world.looked == [B]
    assert world.decide(EPOCH + 60).actions == ("act on a",)


def test_an_object_that_is_gone_leaves_no_timer() -> None:
    world = Decider(STRICT)
    world.wake_at = EPOCH + 60
    world.keyed.mark(A)
    assert world.decide().wake_at == EPOCH + 60
    world.gone.add(A)
    world.keyed.mark(A)
    assert world.decide(EPOCH + 1).wake_at is None


def test_after_the_clock_was_set_back_what_is_due_later_is_looked_at_again() -> None:
    world = Decider(STRICT)
    world.wake_at = EPOCH + 90
    for key in (B, A):
        world.keyed.mark(key)
    world.decide()
    world.instant, world.wake_at = 50.0, EPOCH + 50 - 300 + 40
    world.decide(EPOCH + 49.5)  # set back by less than is worth a look
    assert world.looked == []
    assert world.decide(EPOCH + 50 - 300).wake_at == EPOCH + 50 - 300 + 40
    assert world.looked == [A, B]
    world.instant = 60.0
    world.decide(EPOCH + 60 - 300)
    assert world.looked == [], "once for each time that it was set back"
    world.instant, world.wake_at = 90.0, None
    world.decide(EPOCH + 90 - 300)
    assert world.looked == [A, B], "after 90 s, as if the clock had gone on"


def test_a_cycle_has_bounds_and_the_rest_begins_the_next_one_at_once() -> None:
    for options in (KeyedOptions(keys_max=2), KeyedOptions(actions_max=2)):
        world = Decider(STRICT, options)
        for key in (A, B, C, D):
            world.keyed.mark(key)
        first = world.decide()
        assert (world.looked, first.wake_at) == ([A, B], EPOCH)
        assert world.decide().actions == ("act on c", "act on d")


def test_an_action_on_a_part_requeues_its_object() -> None:
    world = Decider(STRICT)
    world.keyed.requeue(part_key(A, "pod-1"))
    world.keyed.requeue(part_key(("ns", ""), "of no known object"))
    world.decide()
    assert world.looked == [A]


def test_a_fault_over_one_object_is_reported_and_holds_up_no_other() -> None:
    world = Decider(SetAside("test"))
    world.broken = {A}
    world.keyed.mark(A)
    world.keyed.mark(B)
    decision = world.decide()
    assert decision.actions == ("report a: ValueError: a", "act on b")
    entry = world.set_aside.find(CONFIG_MAPS, A)
    assert entry is not None
    assert entry.stage is AsideStage.DECIDE


def test_an_object_that_cannot_be_decided_on_is_tried_after_growing_delays_until_it_can() -> None:
    world = Decider(SetAside("test"), KeyedOptions(retry_seconds_max=10))
    world.broken = {A}
    world.keyed.mark(A)
    now, delays = EPOCH, list[float]()
    for _ in range(6):
        wake_at = world.decide(now).wake_at
        assert wake_at is not None
        delays.append(wake_at - now)
        assert world.looked == [A]
        now = wake_at
    assert delays == [2, 4, 8, 10, 10, 10]
    world.broken.clear()
    assert world.decide(now).actions == ("act on a",)
    assert world.set_aside.find(CONFIG_MAPS, A) is None


def test_without_containment_a_fault_ends_the_cycle() -> None:
    world = Decider(STRICT)
    world.broken = {A}
    world.keyed.mark(A)
    with pytest.raises(ValueError, match="a"):
        world.decide()
