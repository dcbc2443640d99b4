"""The lives of virtual pods: what an event or a timer makes of a pod's record.

Everything here is synchronous. A transition changes the record, sets the next timer and notes
wants; carrying the wants out is the business of `fairlead.embedded.virtual.nodes`.

    Bound ──start-up delay, and its ConfigMaps exist──▶ Running ──▶ Succeeded | Failed
      (address published at once if a ConfigMap is missing:   └──restartPolicy──▶ BackOff ──▶
      Running
       peers are looked up from it)
    any ──deletion──▶ Terminating ──delay, at most the grace period──▶ Gone
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import GRACE_SECONDS_DEFAULT, ConfigMap, Pod
from fairlead.api.kubernetes.image_names import images_of
from fairlead.api.values.times import parse_time
from fairlead.embedded.virtual.hardware import Hardware
from fairlead.embedded.virtual.profile import PodState, Profile
from fairlead.embedded.virtual.pulls import ImagePulls
from fairlead.embedded.virtual.stages.config_waits import ConfigWaits
from fairlead.embedded.virtual.stages.gates import GangGates
from fairlead.embedded.virtual.stages.records import (
    AddressPool,
    NodeFault,
    PodRecord,
    VirtualNodeRecord,
    Want,
    status_patch,
)
from fairlead.embedded.virtual.stages.resizing import amounts_of
from fairlead.embedded.virtual.stages.stage_sampler import StageSampler, exit_code, resume_step
from fairlead.embedded.virtual.stages.status import PodPhase, terminated
from fairlead.embedded.virtual.stages.step_reports import step_reports
from fairlead.model.asks.image_pulls import PULL_COMMAND, is_pull
from fairlead.runtime.backoff import doubled
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Change, Mirror

NODE_RESTARTED = "NodeRestarted"
DISRUPTED_BY_NODE = "TerminationByKubelet"
EXIT_CODE_UNKNOWN = 255
#: Of a container that a runtime could not start, as containerd has it.
_NOT_STARTED = 128
SIGTERM = 15

Key = tuple[str, str]


class PodLives:
    """The records of all pods on virtual nodes. `timer(instant, action)` and
    `write(record)` act, `warn(pod, message)` emits an Event.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        clock: Clock,
        rng: random.Random,
        maps: Mirror[ConfigMap],
        timer: Callable[[float, Callable[[], None]], None],
        write: Callable[[PodRecord], None],
        warn: Callable[[Pod, str], None],
        images: ImagePulls,
    ) -> None:
        self._profile = profile
        self._sampler = StageSampler(profile)
        self.hardware = Hardware(profile.hardware)
        self._gates = GangGates(self.hardware)
        self._clock = clock
        self._rng = rng
        self._config = ConfigWaits(maps)
        self._timer = timer
        self._write = write
        self._warn = warn
        self._images = images
        self._addresses = AddressPool()
        self._by_uid: dict[str, PodRecord] = {}
        self._by_key: dict[Key, PodRecord] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    # Events

    def observe(self, pod: Pod, node: VirtualNodeRecord) -> None:
        """Take note of a new or changed pod that is bound to `node`."""
        record = self._by_uid.get(pod.metadata.uid)
        if record is None:
            record = self._adopt(pod, node)
        record.pod = pod
        if node.fault is not None:
            return
        if pod.metadata.deletion_timestamp is not None:
            self._terminate(record, at_once=False)
        elif pod.is_terminal and not record.is_over:  # somebody else ended it
            self._over(record, PodState(pod.status.phase))
            record.wants &= ~Want.STATUS
        elif not record.begun:
            self._begin(record)
        self._resize(record)

    def forget(self, uid: str) -> None:
        """Take note that the pod is gone from the API."""
        record = self._by_uid.pop(uid, None)
        if record is None:
            return
        self._over(record, PodState.GONE)
        record.wants = Want.NOTHING
        record.node.pods.pop(uid, None)
        self._gates.remove(record)
        if self._by_key.get(record.pod.metadata.key) is record:
            del self._by_key[record.pod.metadata.key]
        if record.address:
            self._addresses.give_back(record.address)
        self._config.leave(record)

    def config_changed(self, change: Change[ConfigMap]) -> None:
        """Start the pods that waited for this config map."""
        for uid in self._config.waiting_for(change.key):
            record = self._by_uid[uid]
            if record.node.fault is None:
                self._try_start(record)

    # Faults

    def lose(self, record: PodRecord) -> None:
        """The node lost its power: nothing that was set to happen will happen."""
        record.generation += 1
        self._images.leave(record.uid)

    def resume(self, record: PodRecord, *, crashed: bool) -> None:
        """The node answers again."""
        if record.pod.metadata.deletion_timestamp is not None:
            self._terminate(record, at_once=crashed)
        elif not record.begun or (crashed and record.state is PodState.BOUND):
            self._begin(record)
        elif crashed and not record.is_over:
            self._restarted(record)
        elif record.state is PodState.BOUND:
            self._try_start(record)
        self._resize(record)
        if record.wants:
            self._write(record)

    def set_speed(self, node: VirtualNodeRecord, speed: float) -> None:
        """Let the programs on a node do so many seconds of work in a second, above 0."""
        now, factor = self._clock.now(), node.speed / speed
        node.speed = speed
        for record in list(node.pods.values()):
            if record.state is not PodState.RUNNING or node.fault is NodeFault.CRASHED:
                continue
            record.generation += 1
            if record.stage is not None:
                record.stage_at = now + max(record.stage_at - now, 0.0) * factor
                self._at(record, record.stage_at, self._finish_stage)
            if record.step_at:
                record.step_at = now + max(record.step_at - now, 0.0) * factor
                self._at(record, record.step_at, self._progress_due)

    def kill(self, key: Key, *, exit_code: int, signal: int) -> None:
        """End a pod's processes; KeyError when it has none."""
        record = self._by_key[key]
        if record.is_over:
            raise KeyError(key)
        record.started_at = record.started_at or self._clock.now()
        self._finish(record, exit_code, signal=signal)

    # Transitions

    def _adopt(self, pod: Pod, node: VirtualNodeRecord) -> PodRecord:
        now = self._clock.now()
        started = pod.status.start_time
        since = parse_time(started) if started else now
        record = PodRecord(pod, node, amounts_of(pod), pod.status.pod_ip, since)
        if record.address:
            self._addresses.adopt(record.address)
        self._by_uid[record.uid] = record
        self._by_key[pod.metadata.key] = record
        node.pods[record.uid] = record
        self._gates.add(record)
        if pod.is_terminal:
            record.state = PodState(pod.status.phase)
            record.begun = True
        elif started:
            self._admit(record)
        if pod.status.phase == PodPhase.RUNNING.value:
            self._continue(record)
        return record

    def _admit(self, record: PodRecord) -> None:
        record.admitted = True
        record.node.use.add(record.requests)

    def _resize(self, record: PodRecord) -> None:
        """Give the pod what its spec asks now, at once, if its node has room for that."""
        if not record.admitted or record.state is PodState.TERMINATING:
            return
        amounts, now = record.amounts, self._clock.now()
        if record.node.resizes.look(record.pod, amounts, now, partial(self._resize, record)):
            amounts.actual, amounts.progress = amounts.allocated, None
            self._want(record, Want.STATUS)

    def _begin(self, record: PodRecord) -> None:
        """First sight of a bound pod: admission, deadline, images."""
        record.begun = True
        record.start_is_due = False
        record.generation += 1
        for problem in self._sampler.unreadable(record.pod):
            self._warn(record.pod, problem)
        if not record.admitted:
            lacking = record.node.use.lacks(record.requests)
            if lacking:
                record.reason = f"OutOf{lacking}"
                record.message = record.node.use.message(lacking, record.requests)
                self._over(record, PodState.FAILED)
                self._want(record, Want.STATUS)
                return
            self._admit(record)
        self._set_deadline(record)
        lacking = self._images.lacks(record.node.name, images_of(record.pod.spec))
        if lacking:
            self._pull(record, lacking)
        else:
            self._create_containers(record)

    def _pull(self, record: PodRecord, images: list[str]) -> None:
        """Have the images pulled that the pod's node lacks; its containers are made after that."""
        self._want(record, Want.STATUS)
        pulled = partial(self._pulled, record, record.generation)
        self._images.pull(record.node.name, images, record.uid, pulled)

    def _pulled(self, record: PodRecord, generation: int, error: str) -> None:
        if record.generation != generation or record.node.fault is not None:
            return
        record.image_error = error
        if error:
            self._want(record, Want.STATUS)
        elif is_pull(record.pod):
            text = f'exec: "{PULL_COMMAND}": stat {PULL_COMMAND}: no such file or directory'
            self._finish(record, _NOT_STARTED, reason="StartError", message=text)
        else:
            self._create_containers(record)

    def _create_containers(self, record: PodRecord) -> None:
        """The node has the images: start-up delay, address."""
        now = self._clock.now()
        drawn = self._sampler.draw(record.pod, PodState.BOUND, self._rng)
        record.stage = None if drawn is None else drawn.stage
        if drawn is not None:
            record.stage_at = now + drawn.seconds
            self._at(record, record.stage_at, self._start_due)
        if drawn is None or self._config.missing(record):
            record.address = record.address or self._addresses.take()
            self._want(record, Want.STATUS)

    def _continue(self, record: PodRecord) -> None:
        """A pod that ran already when this process started: its time went on."""
        record.begun = True
        record.take_run()
        record.state = PodState.RUNNING
        record.changed_at = record.started_at
        self._set_deadline(record)
        self._schedule_end(record)

    def _set_deadline(self, record: PodRecord) -> None:
        seconds = record.pod.spec.active_deadline_seconds
        if seconds is not None:
            self._timer(record.bound_at + seconds, partial(self._deadline_due, record))

    def _start_due(self, record: PodRecord) -> None:
        record.start_is_due = True
        self._try_start(record)

    def _try_start(self, record: PodRecord) -> None:
        if record.state is not PodState.BOUND or record.stage is None:
            return
        missing = self._config.missing(record)
        if missing or not record.start_is_due:
            return
        self._config.leave(record)
        record.address = record.address or self._addresses.take()
        if (due_at := self._gates.begin(record, self._clock.now())) is not None:
            self._at(record, due_at, self._gate_due)
            self._want(record, Want.STATUS)
        elif record.stage.next.state is PodState.FAILED:
            self._finish_stage(record)
        else:
            self._run(record)

    def _gate_due(self, record: PodRecord) -> None:
        if self._gates.has_passed(record, self._clock.now()):
            self._try_start(record)
        else:
            self._over(record, PodState.FAILED)
            self._want(record, Want.STATUS)

    def _run(self, record: PodRecord) -> None:
        record.state = PodState.RUNNING
        record.started_at = record.changed_at = self._clock.now()
        record.generation += 1
        self._want(record, Want.STATUS)
        self._schedule_end(record)

    def _schedule_end(self, record: PodRecord) -> None:
        """Draw how the run ends and set its timers, counted from `started_at`."""
        now = self._clock.now()
        if names.NODE_TEST in record.pod.metadata.labels:
            self._schedule_test(record)
            return
        drawn = self._sampler.draw(record.pod, PodState.RUNNING, self._rng)
        record.stage = None if drawn is None else drawn.stage
        record.step_at = 0.0
        spec = self._profile.progress
        resumed = resume_step(record.pod) if spec is not None else 0
        if drawn is not None:
            seconds = drawn.seconds
            if spec is not None and drawn.stage.next.state is PodState.SUCCEEDED:
                seconds = max(seconds - resumed * spec.step_seconds, 0.0)
            end_at = max(record.started_at + seconds, now)
            record.stage_at = record.node.at_speed(end_at, now)
            self._at(record, record.stage_at, self._finish_stage)
        if spec is not None and (spec.all_members or record.is_first):
            record.step = resumed + int((now - record.started_at) / spec.step_seconds)
            self._schedule_progress(record)

    def _schedule_test(self, record: PodRecord) -> None:
        """Let a test of the machine end with what the model of its hardware says."""
        record.stage, record.step_at = None, 0.0
        for each, end in self._gates.ends_of_test(record):
            end_at = max(record.started_at + end.seconds, self._clock.now())
            self._at(each, end_at, partial(self._end_test, end.message))

    def _end_test(self, message: str, record: PodRecord) -> None:
        self._finish(record, 0 if message else 1, message=message)

    def _schedule_progress(self, record: PodRecord) -> None:
        """Set the timer of the next report: at the next checkpoint that is not too soon."""
        spec = self._profile.progress
        if spec is None:
            return
        steps = spec.steps_to_report(record.step)
        record.step_next = record.step + steps
        now = self._clock.now()
        record.step_at = record.node.at_speed(now + steps * spec.step_seconds, now)
        self._at(record, record.step_at, self._progress_due)

    def _progress_due(self, record: PodRecord) -> None:
        record.step = record.step_next
        record.reports = step_reports(record, self._profile.progress, self.hardware, self._clock)
        self._want(record, Want.PROGRESS)
        self._schedule_progress(record)

    def _finish_stage(self, record: PodRecord) -> None:
        stage = record.stage
        assert stage is not None
        code, end = exit_code(record.pod, stage), stage.next
        self._finish(record, code, signal=end.signal, reason=end.reason, message=end.message)

    def _finish(
        self, record: PodRecord, code: int, *, signal: int = 0, reason: str = "", message: str = ""
    ) -> None:
        """The processes have ended: restart in place, or end for good, as the policy says."""
        now = self._clock.now()
        record.ended = terminated(
            code,
            signal,
            reason=reason,
            message=message,
            started_at=record.started_at or None,
            finished_at=now,
        )
        failed = record.ended.exit_code != 0 or (
            record.stage is not None and record.stage.next.state is PodState.FAILED
        )
        policy = record.pod.spec.restart_policy
        if policy == "Always" or (policy == "OnFailure" and failed):
            self._back_off(record)
        else:
            self._over(record, PodState.FAILED if failed else PodState.SUCCEEDED)
            self._want(record, Want.STATUS)

    def _back_off(self, record: PodRecord) -> None:
        profile = self._profile
        first, most = profile.restart_back_off_seconds, profile.restart_back_off_seconds_max
        seconds = doubled(first, record.restart_count, most)
        record.state = PodState.BACK_OFF
        record.changed_at = self._clock.now()
        record.generation += 1
        self._at(record, record.changed_at + seconds, self._restart_due)
        self._want(record, Want.STATUS)

    def _restart_due(self, record: PodRecord) -> None:
        record.restart_count += 1
        self._run(record)

    def _restarted(self, record: PodRecord) -> None:
        """The node is back after a crash and finds the pod's processes gone."""
        if record.state is PodState.BACK_OFF or record.pod.spec.restart_policy != "Never":
            self._finish(record, EXIT_CODE_UNKNOWN)
            return
        record.reason = NODE_RESTARTED
        record.message = "the node restarted while the pod was running"
        record.disrupted = DISRUPTED_BY_NODE
        record.stage = None
        self._finish(record, EXIT_CODE_UNKNOWN, reason=NODE_RESTARTED)

    def _deadline_due(self, record: PodRecord) -> None:
        over = record.is_over or record.state is PodState.TERMINATING
        if over or record.node.fault is NodeFault.CRASHED:
            return
        record.reason = "DeadlineExceeded"
        record.message = "Pod was active on the node longer than the specified deadline"
        self._end_by_signal(record)
        self._over(record, PodState.FAILED)
        self._want(record, Want.STATUS)

    def _terminate(self, record: PodRecord, *, at_once: bool) -> None:
        """Deletion was asked for: stop within the grace period, then confirm."""
        now = self._clock.now()
        grace = record.pod.metadata.deletion_grace_period_seconds
        latest = now + (GRACE_SECONDS_DEFAULT if grace is None else grace)
        if record.state is PodState.GONE:
            return
        if record.is_over:
            self._want(record, Want.DELETE)
            return
        if record.state is PodState.TERMINATING and not at_once and record.stage_at <= latest:
            return
        if record.state is not PodState.TERMINATING:
            drawn = self._sampler.draw(record.pod, PodState.TERMINATING, self._rng)
            delay = 0.0 if drawn is None else drawn.seconds
            runs = record.state is PodState.RUNNING
            record.stage_at = now + (delay if runs else 0.0)
            record.wants = Want.NOTHING
            self._config.leave(record)
        record.state = PodState.TERMINATING
        self._images.leave(record.uid)
        record.begun = True
        record.generation += 1
        record.stage_at = now if at_once else min(record.stage_at, latest)
        self._at(record, record.stage_at, self._gone_due)

    def _gone_due(self, record: PodRecord) -> None:
        """The processes are gone. An object that a finalizer keeps says so, as a kubelet has it."""
        is_kept = bool(record.pod.metadata.finalizers)
        if is_kept:
            self._end_by_signal(record)
        self._over(record, PodState.FAILED if is_kept else PodState.GONE)
        self._want(record, Want.STATUS | Want.DELETE if is_kept else Want.DELETE)

    def _end_by_signal(self, record: PodRecord) -> None:
        if record.started_at:
            now = self._clock.now()
            record.ended = terminated(0, SIGTERM, started_at=record.started_at, finished_at=now)

    def _over(self, record: PodRecord, state: PodState) -> None:
        """Nothing more happens by itself; the node's resources are free."""
        record.state = state
        record.changed_at = self._clock.now()
        record.generation += 1
        self._images.leave(record.uid)
        if record.admitted:
            record.admitted = False
            record.node.resizes.leave(record.uid)
            record.node.use.remove(record.requests)
            record.node.resizes.room_came()
        self._config.leave(record)

    # Small parts

    def _at(self, record: PodRecord, instant: float, act: Callable[[PodRecord], None]) -> None:
        generation = record.generation

        def fire() -> None:
            if record.generation == generation:
                act(record)

        self._timer(instant, fire)

    def _want(self, record: PodRecord, want: Want) -> None:
        record.wants |= want
        self._write(record)

    def status(self, record: PodRecord) -> dict[str, Any]:
        """Return the patch that writes the record's present state."""
        waits_for = self._config.missing(record) if record.state is PodState.BOUND else ""
        return status_patch(record, waits_for, self._profile.use)
