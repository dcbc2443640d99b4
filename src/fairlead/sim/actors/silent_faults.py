"""Machines that are bad and say nothing: some from their first day, others from some day on.

    corrupt   what a gang computes there is wrong: all of its attempt is lost
    slow      the gang takes twice as long
    dead      the GPUs do not answer: the attempt fails half a minute after its start
    link      the same as slow, and only tests in pairs find it; where there are such tests

A test finds each of them. Without tests people find a machine after it has been under some attempts
that went wrong. However it was found, it is mended some time later. What is counted are attempts
that began on a machine that was bad already: those that a test could have kept away from it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import NODES
from fairlead.api.status import NotFound
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.hardware import Quality
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.sim.actors.disturbances import Disturbances, lognormal
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.world_options import DAY_SECONDS, WorldOptions

_KINDS = (Quality.CORRUPT, Quality.SLOW, Quality.DEAD)
_SLOW_KINDS = (Quality.SLOW, Quality.LINK)
_SLOW_FACTOR, _DEAD_SECONDS = 2.0, 30.0
_LOOK_SECONDS = 60.0
#: What is found again within so long was not mended.
REPEAT_SECONDS = 7 * DAY_SECONDS
#: Of the reason for which a node is out.
_BLAMED = "node-test network"


@dataclass(slots=True)
class _Attempt:
    """An attempt that runs, and the machines that were bad when it began."""

    number: tuple[str, int]
    at: float
    gpus: int
    bad: dict[str, Quality]


class SilentFaults(Observer):
    """An `Observer` of jobs, pods and nodes; the figures are of the whole run."""

    def __init__(
        self, options: WorldOptions, client: Client, clock: Clock, virtual: VirtualNodes,
        *, disturbances: Disturbances, rng: random.Random,
    ) -> None:  # fmt: skip
        #: Machines that became bad, and those that tests, and people without a test, found.
        self.faults = self.found_by_tests = self.found_by_people = self.found_by_pairs = 0
        #: Attempts that began on a bad machine, and the GPU time that they lost by it.
        self.gangs_hit = 0
        self.lost_gpu_seconds = 0.0
        #: Times that a node was taken out: in all, while its machine was good, and within
        #: REPEAT_SECONDS after its machine was mended.
        self.taken = self.taken_good = self.repeated = 0
        self.bad: dict[str, Quality] = {}
        self._options = options
        self._client = client
        self._clock = clock
        self._virtual = virtual
        self._disturbances = disturbances
        self._rng = rng
        self._seen: set[str] = set()
        self._attempts: dict[ObjectKey, _Attempt] = {}
        self._hits: dict[str, int] = {}
        #: Machines that were found, and when they are mended.
        self._mended_at: dict[str, float] = {}
        self._cordon: dict[str, None] = {}
        self._blamed: dict[str, None] = {}
        self._out: set[str] = set()
        self._last_mended: dict[str, float] = {}

    # What is written

    def node(self, new: Node | None, name: str, now: float) -> None:
        """A machine that is new may be bad; of one that tests took out people take care."""
        if new is None:
            for known in (self.bad, self._mended_at, self._hits, self._cordon, self._blamed):
                known.pop(name, None)
            self._seen.discard(name)
            self._out.discard(name)
            return
        if name not in self._seen:
            self._seen.add(name)
            if self._rng.random() < self._options.infant_share:
                self._spoil(name)
        record = record_of(new.metadata.annotations)
        self._check_blame(name, record)
        self._count_taken(name, now, is_out=record is not None and record.is_out)
        if record is not None and record.state is NodeState.ASKING and name not in self._mended_at:
            self.found_by_tests += name in self.bad
            self._find(name, now)

    def _count_taken(self, name: str, now: float, *, is_out: bool) -> None:
        if not is_out:
            self._out.discard(name)
        elif name not in self._out:
            self._out.add(name)
            self.taken += 1
            self.taken_good += name not in self.bad
            self.repeated += now - self._last_mended.get(name, float("-inf")) < REPEAT_SECONDS

    def _check_blame(self, name: str, record: NodeRecord | None) -> None:
        """A node that goes out for its pairs is one that is slow: no healthy partner goes."""
        if record is None or not record.is_out:
            self._blamed.pop(name, None)
            return
        if _BLAMED not in record.reason or name in self._blamed:
            return
        self.found_by_pairs += 1
        self._blamed[name] = None
        if self.bad.get(name) not in _SLOW_KINDS:
            raise PromiseBroken(f"14: {name} is out for its pairs, and its network is good")

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """A program on a machine whose GPUs do not answer ends a moment later."""
        if new is None or new.status.phase != "Running" or names.JOB_UID not in new.metadata.labels:
            return
        if self.bad.get(new.spec.node_name) is Quality.DEAD:
            asyncio.get_running_loop().call_later(_DEAD_SECONDS, self._fail, key)

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Count an attempt that begins to run on bad machines, and what it loses by its end."""
        known, placement = self._attempts.get(key), new.status.placement if new else None
        is_running = new is not None and new.status.state == "Running" and placement is not None
        number = (new.metadata.uid, placement.attempt) if new and placement else ("", 0)
        if known is not None and (not is_running or known.number != number):
            self._end(self._attempts.pop(key), now)
            known = None
        if known is None and is_running and new is not None and placement is not None:
            on = sorted(set(nodes_of(placement)) & self.bad.keys())
            bad = {name: self.bad[name] for name in on}
            self.gangs_hit += bool(bad)
            self._attempts[key] = _Attempt(number, now, gpu_count(new), bad)

    def _end(self, attempt: _Attempt, now: float) -> None:
        if not attempt.bad:
            return
        is_wrong = any(each not in _SLOW_KINDS for each in attempt.bad.values())
        share = 1.0 if is_wrong else 1.0 - 1.0 / _SLOW_FACTOR
        self.lost_gpu_seconds += (now - attempt.at) * attempt.gpus * share
        for name in attempt.bad:
            self._hits[name] = self._hits.get(name, 0) + 1
            is_known = name in self._mended_at or name not in self.bad
            if not is_known and self._hits[name] >= self._options.found_after_hits:
                self.found_by_people += 1
                self._cordon[name] = None
                self._find(name, now)

    def _find(self, name: str, now: float) -> None:
        options = self._options
        repair = lognormal(self._rng, options.node_repair_seconds, options.node_repair_sigma)
        self._mended_at[name] = now + repair

    # What is done

    async def run(self, until: float) -> None:
        """Let machines become bad until an instant of the loop; then mend all, until cancelled."""
        loop, rate = asyncio.get_running_loop(), self._options.silent_faults_per_day / DAY_SECONDS
        next_at = loop.time() + self._rng.expovariate(rate) if rate > 0 else until
        while (now := loop.time()) < until:
            await asyncio.sleep(max(0.0, min(next_at, until, now + _LOOK_SECONDS) - now))
            if next_at <= loop.time() < until:
                next_at = loop.time() + self._rng.expovariate(rate)
                good = [name for name in self._virtual.node_names() if name not in self.bad]
                if good:
                    self._spoil(self._rng.choice(good))
            await self._act()
        for name in sorted(self.bad):
            self._mended_at[name] = self._clock.now()
        while True:
            await self._act()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _act(self) -> None:
        for name in sorted(self._cordon):
            del self._cordon[name]
            await self._patch(name, {"spec": {"unschedulable": True}})
        now = self._clock.now()
        for name in sorted(name for name, at in self._mended_at.items() if at <= now):
            del self._mended_at[name]
            self._last_mended[name] = now
            self._hits.pop(name, None)
            if self.bad.pop(name, None) in _SLOW_KINDS:
                self._disturbances.slow(name, 1.0)
            self._virtual.set_quality(name, Quality.GOOD)
            notes = {names.REPAIRED: format_time(now)}
            body = {"metadata": {"annotations": notes}, "spec": {"unschedulable": None}}
            await self._patch(name, body)

    async def _patch(self, name: str, body: Mapping[str, object]) -> None:
        with suppress(NotFound):  # its machine was ended meanwhile
            await self._client.patch(NODES, name, body)

    def _spoil(self, name: str) -> None:
        has_pairs = self._options.health.pair_tests
        kind = self._rng.choice((*_KINDS, Quality.LINK) if has_pairs else _KINDS)
        self.faults += 1
        self.bad[name] = kind
        self._virtual.set_quality(name, kind)
        if kind in _SLOW_KINDS:  # of a new node, once it is known
            asyncio.get_running_loop().call_soon(self._disturbances.slow, name, _SLOW_FACTOR)

    def _fail(self, key: ObjectKey) -> None:
        with suppress(KeyError):  # it has ended
            self._virtual.fail_pod(key)
