"""Jupyter's kernel provisioner `fairlead`: a kernel of an existing JupyterLab, as a job.

A kernel's specification (`kernel.json`) names it, with the flags of the job:

    "metadata": {"kernel_provisioner": {"provisioner_name": "fairlead",
                                        "config": {"flags": ["--gpus", "1", "--time", "4h"]}}}

It is in the extra `jupyter`. Restarts keep the job and its nodes (`member/kernel_holder.py`).

Source: jupyter_client.provisioning.KernelProvisionerBase.
"""

# Jupyter's own class has these signatures, and polls.
# ruff: noqa: FBT001, FBT002, ASYNC110

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any, cast

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Float, List, Unicode

from fairlead.cli.jupyter.kernel_job import KernelConnection, KernelJob, KernelProgram
from fairlead.member import kernel_holder

POLL_SECONDS = 0.1
#: For the answer of a member, which may be away for a while.
ANSWER_SECONDS = 20.0
#: The holder's report comes each second.
REPORT_SECONDS = 2.0


class FairleadProvisioner(KernelProvisionerBase):
    """Starts a kernel as a job, and leads to it."""

    flags = List(Unicode(), help="Flags of the job, as of `fairlead run`.").tag(config=True)
    lost_seconds = Float(
        3600.0, help="How long the kernel goes on while no Jupyter is connected with it."
    ).tag(config=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.job: KernelJob | None = None
        self._connection: KernelConnection | None = None
        self._run = 0
        self._has_process = False

    @property
    def has_process(self) -> bool:
        """True from the launch until the end has been seen."""
        return self._has_process

    async def poll(self) -> int | None:
        """Return None while the kernel runs, as far as that is known; else its exit code."""
        if self.job is None:
            return 0
        state = self.job.state
        if state is not None and state.run >= self._run and state.code is not None:
            return state.code
        return 1 if self.job.has_ended else None

    async def wait(self) -> int | None:
        """Return the exit code once the kernel has ended."""
        while (code := await self.poll()) is None:
            await asyncio.sleep(POLL_SECONDS)
        self._has_process = False
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel's processes."""
        if signum and self.job is not None and self.job.state is not None:
            name = signal.Signals(signum).name.removeprefix("SIG")
            await self._asked(self.job.send_signal(name))

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel; a job that still waits is cancelled."""
        await self._end(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        """End the kernel; a job that still waits is cancelled."""
        await self._end(signal.SIGTERM)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Return what `launch_kernel` is given. The command is that of the specification: paths
        of this machine mean nothing in a member.
        """
        given: dict[str, Any] = await super().pre_launch(cmd=list(self.kernel_spec.argv), **kwargs)
        return given

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, in its job where that is there, and return where it listens.

        Waits for as long as the job waits. RuntimeError where there is no kernel.
        """
        if not await self._again():
            program = KernelProgram(tuple(self.flags), tuple(cmd), float(self.lost_seconds))
            self.job = job = KernelJob(program, self._note)
            try:
                self._connection = await asyncio.wrap_future(job.start())
            except asyncio.CancelledError:
                await asyncio.to_thread(job.cancel)
                raise
            self._run = 1
        self._has_process = True
        assert self._connection is not None, "the kernel runs"
        ports = {name: getattr(self._connection, name) for name in kernel_holder.PORTS}
        key = self._connection.key.encode()  # bytes, as Jupyter's own provisioner has it
        info = cast("KernelConnectionInfo", {
            **ports, "key": key, "ip": "127.0.0.1", "transport": "tcp",
            "signature_scheme": "hmac-sha256",
        })  # fmt: skip
        self.connection_info = info
        return info

    async def cleanup(self, restart: bool = False) -> None:
        """Have the job end, unless the kernel is to begin again in it."""
        job = self.job
        if restart or job is None:
            return
        await self._asked(job.order(kernel_holder.END))
        until = time.monotonic() + ANSWER_SECONDS
        while not job.has_ended and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        if not job.has_ended:
            await asyncio.to_thread(job.cancel)
        self.job = None

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        """Return how long a kernel may take to end: news of it come later than here."""
        return recommended + 2 * REPORT_SECONDS

    async def _again(self) -> bool:
        """Say whether the kernel has begun again in the job that is there."""
        job = self.job
        if job is None or job.has_ended or job.state is None or job.state.code is None:
            return False
        await self._asked(job.order(kernel_holder.AGAIN))
        until = time.monotonic() + ANSWER_SECONDS
        while not job.has_ended and time.monotonic() < until:
            if job.state.run > self._run:
                self._run = job.state.run
                return True
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(job.cancel)
        return False

    async def _end(self, number: signal.Signals) -> None:
        if self.job is not None and self.job.state is None:
            await asyncio.to_thread(self.job.cancel)
        else:
            await self.send_signal(number)

    async def _asked(self, answer: Any) -> None:
        """Wait for the answer of a member; what fails is shown, since more follows."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.wrap_future(answer)
        except Exception as error:  # noqa: BLE001 # of Jupyter's thread and ours: it must go on
            self._note(str(error) or "the member does not answer")

    def _note(self, text: str) -> None:
        self.log.info("fairlead: %s", text)
