"""One pod on the local node: from the first sight of it to the confirmation of its deletion.

`LocalPod.run` reads from top to bottom: recover or prepare, run the containers, report the end,
wait for the deletion, stop, clean up. Deletion and the deadline cut in by moving the deadline of
an `asyncio.timeout` around the middle part; the processes are not children of any task, so that
cancelling a task never loses one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from fairlead.api import names
from fairlead.api.kubernetes.core import GRACE_SECONDS_DEFAULT, GRACE_SECONDS_MAX, Pod
from fairlead.api.values.times import parse_time
from fairlead.decide.jobs.following.progress import read_progress
from fairlead.embedded.local.containers import (
    HOST_IP,
    ConfigMissing,
    ContainerLaunch,
    ContainerMount,
    Unsupported,
    launch_of,
)
from fairlead.embedded.local.host import PodHost
from fairlead.embedded.local.poddir import PodDir, PodRecordFile
from fairlead.embedded.local.processes.endings import (
    EXIT_CODE_UNKNOWN,
    START_ERROR,
    Stopper,
    outcome,
    recorded_end,
    restarts,
)
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.progress import MemberReports
from fairlead.embedded.local.resizer import PodResizer
from fairlead.embedded.local.track import ContainerTrack, final_phase, has_failed, tracks_of
from fairlead.embedded.local.use import PodLooks
from fairlead.embedded.virtual.stages.status import (
    PodNow,
    PodPhase,
    Running,
    Terminated,
    Waiting,
    terminated,
)
from fairlead.runtime.backoff import doubled

NODE_RESTARTED, DISRUPTED_BY_NODE = "NodeRestarted", "TerminationByKubelet"


class LocalPod:
    """One pod. `observe` and `gone` are called from watch events; `run` is the pod's task."""

    def __init__(self, pod: Pod, host: PodHost, directory: PodDir) -> None:
        self.pod = pod
        self.directory = directory
        self._host = host
        self._record: PodRecordFile | None = None
        #: Init containers, which run one after another, and those that run together after them.
        self._inits = tracks_of(pod.spec.init_containers)
        self._tracks = tracks_of(pod.spec.containers)
        self._volumes: dict[str, Path] = {}
        self._reports = MemberReports(lambda new: host.write_reports(self.pod, new), host.now)
        self._reason = self._message = self._disrupted = ""
        self._rejected = False
        self._over: PodPhase | None = None
        self._deleted = asyncio.Event()
        #: True once the pod is gone from the API.
        self.is_gone = False
        self._grace_seconds = float(GRACE_SECONDS_DEFAULT)
        self._scope: asyncio.Timeout | None = None
        self._stopper = Stopper(host.options.kill_seconds)
        #: What it used so far.
        self.use = PodLooks(directory.path / "use.json", host.problem)
        self._writing = asyncio.Lock()
        self._resizer = PodResizer(host, self._sync)

    @property
    def _every(self) -> tuple[ContainerTrack, ...]:
        return (*self._inits, *self._tracks)

    @property
    def running(self) -> dict[str, Run]:
        """Return the runs that are alive, by container."""
        return {t.spec.name: t.run for t in self._every if t.run is not None and t.run.has_shim}

    def entered(self, container: str) -> tuple[Run, tuple[ContainerMount, ...]] | None:
        """Return the run of a container and its mounts; None when it does not run now."""
        run = self.running.get(container)
        return run and (run, self.directory.mounts(self.pod, container, self._volumes))

    # Events

    def observe(self, pod: Pod) -> None:
        """Take note of a change of the pod."""
        self.pod = pod
        self._resizer.wake()
        if pod.metadata.deletion_timestamp is None:
            return
        grace = pod.metadata.deletion_grace_period_seconds
        self._delete(float(GRACE_SECONDS_DEFAULT if grace is None else grace))

    def gone(self) -> None:
        """Take note that the pod is gone from the API: kill at once."""
        self.is_gone = True
        self._delete(0.0)

    def _delete(self, grace_seconds: float) -> None:
        """Cut in; a later, shorter grace period shortens the one that runs."""
        now = asyncio.get_running_loop().time()
        if self._deleted.is_set() and grace_seconds < self._grace_seconds:
            self._stopper.shorten(grace_seconds)
        self._grace_seconds = grace_seconds
        self._deleted.set()
        if self._scope is not None:
            self._scope.reschedule(now)

    # The life

    async def run(self) -> None:
        """Live; returns when the pod is gone from the API and its directory is removed."""
        if self.pod.metadata.deletion_timestamp is not None:
            self.observe(self.pod)
        if self.pod.is_terminal:
            self._over = PodPhase(self.pod.status.phase)
        else:
            await self._until_over()
        await self._deleted.wait()
        await self._stop(self._grace_seconds)
        await self._end_logs()
        self._host.release(self.pod)  # once it is gone, others may come for what it had
        if not self.is_gone:
            await self._reports.look(is_last=True)
            await self._sync()
            await self._host.confirm_deletion(self.pod)
        await self._host.remove(self.directory)

    async def _until_over(self) -> None:
        """Recover or start, and follow the containers to their end, a deletion or the deadline."""
        self._scope = scope = asyncio.timeout(None)
        timed_out = False
        try:
            async with scope:
                if self._deleted.is_set():
                    scope.reschedule(asyncio.get_running_loop().time())
                await self._begin()
                if self._over is None:
                    await self._follow()
        except TimeoutError:
            if not scope.expired():
                raise
            timed_out = True
        finally:
            self._scope = None
        if timed_out and not self._deleted.is_set():
            await self._deadline()
        if self._over is not None:
            await self._reports.look(is_last=True)
            await self._end_logs()
            self._host.release(self.pod)
            await self._sync()

    async def _begin(self) -> None:
        """Bring the containers to their first state: attached, ended or ready to start."""
        try:
            self._record = self.directory.read()
        except OSError as error:
            self._host.problem(error)
            self._fail_as_restarted(f"the pod's directory cannot be read: {error}")
            return
        if self._record is not None:
            self._host.readmit(self.pod)
            await self._recover(self._record)
        elif self.pod.status.phase == PodPhase.RUNNING.value:
            self._fail_as_restarted("the pod's directory is gone; was the data directory replaced?")
        else:
            await self._prepare()
        self._set_deadline()

    def _set_deadline(self) -> None:
        limit = self.pod.spec.active_deadline_seconds
        if limit is None or self._record is None or self._scope is None or self._deleted.is_set():
            return
        remaining = self._record.bound_at + limit - self._host.now()
        self._scope.reschedule(asyncio.get_running_loop().time() + max(remaining, 0.0))

    async def _deadline(self) -> None:
        self._reason = "DeadlineExceeded"
        self._message = "Pod was active on the node longer than the specified deadline"
        grace = self.pod.spec.termination_grace_period_seconds or GRACE_SECONDS_DEFAULT
        await self._stop(min(grace, GRACE_SECONDS_MAX))
        self._over = PodPhase.FAILED

    async def _prepare(self) -> None:
        """Admit the pod, give it an address, and write both down before anything starts."""
        if refusal := self._host.admit(self.pod):
            self._reason, _, self._message = refusal.partition(": ")
            self._over, self._rejected = PodPhase.FAILED, True
            return
        started = self.pod.status.start_time
        while self._record is None:
            try:
                meta = self.pod.metadata
                record = PodRecordFile(
                    namespace=meta.namespace, name=meta.name, uid=meta.uid,
                    address=self._host.address(meta.uid),
                    bound_at=parse_time(started) if started else self._host.now(),
                    logs=self._host.open_logs(self.pod),
                    gpus=self._host.assign_gpus(self.pod),
                )  # fmt: skip
                self.directory.write(record)
                self._record = record
            except OSError as error:
                await self._trouble("CreateContainerError", error)
            except Unsupported as error:
                self._refuse(error)
                return
        self._host.problem(None)
        self._set_deadline()
        await self._sync()
        if images := sorted({t.spec.image for t in self._every if t.spec.image}):
            message = f"the local node runs commands of this machine; ignored: {', '.join(images)}"
            self._host.event(self.pod, "ImageIgnored", message)

    async def _recover(self, record: PodRecordFile) -> None:
        """Find out what became of the containers while the node was away."""
        lost = ""
        for track in self._every:
            runs = self.directory.runs(track.spec.name)
            if not runs:
                continue
            track.restarts = int(runs[-1].name)
            run = Run(runs[-1], self._host.boot)
            try:
                lost = self._recover_run(track, run) or lost
            except OSError as error:
                self._host.problem(error)
                lost = f"container {track.spec.name}: {error}"
        if record.stopped:
            lost = "the node was shut down while the pod was running"
        if not lost:
            return
        await self._stop(0.0)
        if self.pod.spec.restart_policy == "Never":
            self._fail_as_restarted(lost)
            return
        self._record = msgspec.structs.replace(record, stopped=False)
        self.directory.write(self._record)
        for track in self._every:
            if track.run is None and not self.directory.runs(track.spec.name):
                continue
            track.last = terminated(EXIT_CODE_UNKNOWN, reason=NODE_RESTARTED, message=lost)
            track.run, track.state = None, Waiting("ContainerCreating")
            track.restarts += 1

    def _recover_run(self, track: ContainerTrack, run: Run) -> str:
        """Attach to a run, or take its recorded end; return what is wrong when neither is there."""
        if run.attach():
            started = run.started()
            track.run = run
            track.state = Running(started.started_at if started else self._host.now())
            self.use.begin(track.state.started_at)
            return ""
        if (ended := run.exit()) is not None:
            track.run = run
            track.state = recorded_end(run, ended)
            self.use.ended(track.spec.name, run, ended.finished_at)
            return ""
        if run.never_started():
            return ""
        if run.same_boot():
            run.kill_survivors()
            return f"the processes of container {track.spec.name} vanished while the node was away"
        return "the machine was restarted"

    def _fail_as_restarted(self, message: str) -> None:
        self._disrupted = DISRUPTED_BY_NODE
        self._fail(NODE_RESTARTED, message, terminated(EXIT_CODE_UNKNOWN, reason=NODE_RESTARTED))

    def _refuse(self, error: Unsupported) -> None:
        """The pod can never run here."""
        end = terminated(EXIT_CODE_UNKNOWN, reason=START_ERROR, message=str(error))
        self._fail("Unsupported", str(error), end)

    def _fail(self, reason: str, message: str, end: Terminated) -> None:
        """The pod has failed; `end` is that of the containers that have not ended."""
        self._reason, self._message, self._over = reason, message, PodPhase.FAILED
        for track in self._every:
            if not isinstance(track.state, Terminated):
                track.state = end

    # Containers

    async def _follow(self) -> None:
        """Start what is to be started and wait until every container has ended for good."""
        try:
            launches = await self._launches()
        except Unsupported as error:
            await self._stop(0.0)
            self._refuse(error)
            return
        async with asyncio.TaskGroup() as watchers:
            seconds = self._host.options.progress_seconds
            reporter = watchers.create_task(self._reports.follow(seconds))
            resizing = watchers.create_task(self._resizer.follow(lambda: self.pod, self._every))
            for track in self._inits:
                await self._run_container(track, launches[track.spec.name])
                if has_failed(track):
                    break
            else:
                async with asyncio.TaskGroup() as group:
                    for track in self._tracks:
                        group.create_task(self._run_container(track, launches[track.spec.name]))
            reporter.cancel()
            resizing.cancel()
        self._over = final_phase(self._every)

    async def _launches(self) -> dict[str, ContainerLaunch]:
        """Return how to start each container, once everything that it refers to exists."""
        while True:
            change = self._host.config_mirrors.next_change()
            try:
                launches = self._make_launches()
            except ConfigMissing as error:
                await self._waiting(error.reason, str(error))
                try:
                    async with asyncio.timeout(self._host.options.retry_seconds):
                        await change.wait()
                except TimeoutError:
                    continue  # a hostPath may have come
            except OSError as error:
                await self._trouble("CreateContainerError", error)
            else:
                self._host.problem(None)
                return launches

    def _make_launches(self) -> dict[str, ContainerLaunch]:
        pod, record = self.pod, self._record
        assert record is not None
        config = self._host.config(pod.metadata.namespace)
        claims = self._host.claims_path(pod.metadata.namespace)
        self._volumes = self.directory.materialise(pod, config, claims)
        launches: dict[str, ContainerLaunch] = {}
        for container in (track.spec for track in self._every):
            launches[container.name] = launch_of(
                pod, container, config, pod_ip=record.address,
                mounts=self.directory.mounts(pod, container.name, self._volumes),
                base=self._host.base_environment(record.gpus.get(container.name, ())),
                cwd=str(self.directory.work(container.name)),
            )  # fmt: skip
        first = launches[pod.spec.containers[0].name].env.get(names.ENV_PROGRESS_FILE)
        self._reports.begin(first, read_progress(pod))
        return launches

    async def _run_container(self, track: ContainerTrack, launch: ContainerLaunch) -> None:
        """Run one container to its final end, restarting it as the pod's policy says."""
        while True:
            if track.run is None:
                await self._start(track, launch)
            run = track.run
            assert run is not None
            if run.has_shim:
                await self._sync()
                await run.wait()
            track.state = ended = self._outcome(track, run)
            if ended.reason == START_ERROR:
                self._host.event(self.pod, "Failed", ended.message, warning=True)
            if not restarts(self.pod, ended) or (track in self._inits and not ended.exit_code):
                return
            await self._back_off(track, ended)

    async def _start(self, track: ContainerTrack, launch: ContainerLaunch) -> None:
        record = self._record
        assert record is not None
        while True:
            launch = self._resizer.launch(self.pod, track.spec.name, launch)
            try:
                path = self.directory.new_run(track.spec.name, track.restarts)
                run = Run(path, self._host.boot)
                log, limits = Path(record.logs[track.spec.name]), self._host.options.logs
                run.start(launch, log, limits, self._host.memory_groups, shims=self._host.shims)
            except OSError as error:
                await self._trouble("CreateContainerError", error)
                continue
            track.run = run
            await run.wait_started()
            track.state = Running(self._host.now())
            self.use.begin(track.state.started_at)
            return

    def _outcome(self, track: ContainerTrack, run: Run) -> Terminated:
        """Return how a run ended, with what it used counted."""
        ended = outcome(run, now := self._host.now())
        self.use.ended(track.spec.name, run, ended.finished_at or now)
        return ended

    async def _back_off(self, track: ContainerTrack, ended: Terminated) -> None:
        options = self._host.options
        ran = (ended.finished_at or 0.0) - (ended.started_at or 0.0)
        if ran >= options.restart_back_off_reset_seconds:
            track.failures = 0
        first, most = options.restart_back_off_seconds, options.restart_back_off_seconds_max
        seconds = doubled(first, track.failures, most)
        track.failures += 1
        track.last, track.run = ended, None
        message = f"back-off {seconds:g}s restarting container {track.spec.name}"
        track.state = Waiting("CrashLoopBackOff", message)
        await self._sync()
        self._host.event(self.pod, "BackOff", message, warning=True)
        await asyncio.sleep(seconds)
        track.restarts += 1
        assert self._record is not None
        try:
            self._host.log_restarts(self._record.logs[track.spec.name])
        except OSError as error:
            self._host.problem(error)

    # Stopping

    async def _stop(self, grace_seconds: float) -> None:
        """End all processes: SIGTERM, SIGKILL after the grace period, until they are gone."""
        runs = list(self.running.values())
        if not runs:
            return
        if not self.is_gone:
            self._host.event(self.pod, "Killing", f"stopping, within {grace_seconds:g}s")
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(self._stopper.stop(run, grace_seconds))
        for track in self._every:
            if track.run is not None and not isinstance(track.state, Terminated):
                track.state = self._outcome(track, track.run)
        if self._deleted.is_set() and self._over is None:
            self._over = final_phase(self._every)

    async def stop_for_shutdown(self, grace_seconds: float) -> None:
        """The node itself goes down: note it, end the processes, tell the API nothing."""
        if self._record is not None and self.running:
            self._record = msgspec.structs.replace(self._record, stopped=True)
            try:
                self.directory.write(self._record)
            except OSError as error:
                self._host.problem(error)
        async with asyncio.TaskGroup() as group:
            for run in self.running.values():
                group.create_task(self._stopper.stop(run, grace_seconds))

    # Reports

    async def _waiting(self, reason: str, message: str) -> None:
        for track in self._every:
            if track.run is None:
                track.state = Waiting(reason, message)
        await self._sync()

    async def _trouble(self, reason: str, error: OSError) -> None:
        """The machine is in trouble, not the pod: say so and try again later."""
        self._host.problem(error)
        await self._waiting(reason, str(error))
        await asyncio.sleep(self._host.options.retry_seconds)

    async def _end_logs(self) -> None:
        if self._record is not None and not self.running:
            self._host.close_logs(self.pod, self._record.logs)

    async def _sync(self) -> None:
        """Write the status as it is now; one write at a time, so that the last is the newest."""
        async with self._writing:
            await self._host.write_status(self.pod, self._status())

    def _status(self) -> PodNow:
        record, now = self._record, self._host.now()
        started = any(isinstance(t.state, Running | Terminated) or t.last for t in self._tracks)
        inits, containers = (
            tuple(t.now(self.pod.metadata.uid) for t in tracks if not self._rejected)
            for tracks in (self._inits, self._tracks)
        )
        amounts = self._host.amounts(self.pod)
        return PodNow(
            phase=self._over or (PodPhase.RUNNING if started else PodPhase.PENDING),
            containers=containers,
            init_containers=inits,
            pod_ip=record.address if record else self.pod.status.pod_ip,
            host_ip=HOST_IP,
            bound_at=record.bound_at if record else now,
            changed_at=now,
            reason=self._reason,
            message=self._message,
            disrupted=self._disrupted,
            use=self.use.text() if self._over else "",
            run=self._reports.run_text() if self._over else "",
            actual=amounts.actual,
            allocated=amounts.allocated,
            resizing=() if self._over else amounts.conditions(),
        )
