"""Follows the file of requests: rules on each once, carries it out, and keeps the answer.

That a request is carried out is on the disk before anything is done. So an agent that is killed, or
a machine that restarts, never does one twice, and knows afterwards what became of it: another boot
is a reboot that succeeded, and a reset whose end was not seen is one that failed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from fairlead.api.cluster.node_report import WHY_MAX, Action, AgentAnswer
from fairlead.api.values.sections import DAY
from fairlead.model.health.faults import Moment
from fairlead.node.files import read_file
from fairlead.node.repairs.machine import RepairFacts, perform, read_facts
from fairlead.node.repairs.request import (
    REQUEST_BYTES_MAX,
    RepairRequest,
    UnreadableRequest,
    decode_request,
)
from fairlead.node.repairs.ruling import ruling_on
from fairlead.node.reports.state import KeptRepair, State
from fairlead.node.running.host import Host
from fairlead.node.running.program_run import ProgramOutcome
from fairlead.node.settings import RepairSettings
from fairlead.runtime.logs import SILENT, Logger

R = TypeVar("R")
#: Gets a request for a reboot and returns what it has done in place of it, "" where that goes on,
#: and what went wrong; an OSError goes wrong as well.
BeforeReboot: TypeAlias = Callable[[RepairRequest], tuple[str, str]]
#: Refusals that are kept, and for how long what was carried out is.
_REFUSALS_MAX, _KEPT_SECONDS = 16, 8 * DAY


@dataclass(frozen=True, slots=True)
class AfterStep:
    """What the agent does next: the faults of GPUs that were reset have ended."""

    gpus_reset: tuple[str, ...] = ()


class Repairs:
    """Used by one event loop; `step` is called once a second."""

    def __init__(
        self,
        host: Host,
        settings: RepairSettings,
        state: State,
        *,
        log: Logger = SILENT,
        before_reboot: BeforeReboot = lambda _: ("", ""),
    ) -> None:
        """StateError when what was done before cannot be read. `before_reboot` is called in a
        thread before the machine is asked to start again.
        """
        self._before_reboot = before_reboot
        self._host = host
        self._settings = settings
        self._state = state
        self._log = log
        self._boot_id = host.boot_id()
        self._kept = {each.id: each for each in state.repairs()}
        self._handled = b""
        self._trouble = ""
        if state.replaced:
            self._keep(KeptRepair(f"lost at {host.now().time:.0f}", Action.NONE,
                                  AgentAnswer.FAILED, host.now().time, self._boot_id))  # fmt: skip
        self._settle(host.now(), is_start=True)

    @property
    def latest(self) -> KeptRepair | None:
        """The answer to the latest request; None: there was none."""
        found = (each for each in reversed(self._kept.values()) if each.action is not Action.NONE)
        return next(found, None)

    async def step(self) -> AfterStep:
        """Rule on a request that is new, and carry it out; StateError, after which it is new."""
        self._settle(self._host.now())
        data, request = self._read()
        if request is None or request.id in self._kept:
            return AfterStep()
        after = await self._rule_on(request)
        self._handled = data
        return after

    async def _rule_on(self, request: RepairRequest) -> AfterStep:
        settings = self._settings
        facts = await in_thread(partial(read_facts, self._host, settings, request))
        now = self._host.now()
        refused = ruling_on(
            request, facts, self._kept.values(), settings, now=now, boot_id=self._boot_id
        )
        kept = KeptRepair(
            request.id, request.action, AgentAnswer.ACCEPTED, now.time, self._boot_id,
            now.uptime_seconds, "it is being carried out",
        )  # fmt: skip
        if refused is not None:
            refusal, seen = refused
            text = f"{refusal.value}: {seen}"
            self._answer(kept, refusal.answer, text)
            return AfterStep()
        self._keep(kept)
        self._log.warning("Carries out a request", action=request.action.value, id=request.id)
        if request.action is Action.REBOOT and (done := await self._prepared(request)):
            self._answer(kept, AgentAnswer.DONE, done)
            return AfterStep()
        outcome = await in_thread(partial(perform, settings, request, facts.gpus))
        return self._after(kept, facts, outcome)

    async def _prepared(self, request: RepairRequest) -> str:
        """Set what counts from a start; return what makes the reboot needless, "" for nothing."""
        try:
            done, wrong = await in_thread(partial(self._before_reboot, request))
        except OSError as error:
            done, wrong = "", str(error)
        if wrong:
            self._log.warning("Left settings as they are before a reboot", error=wrong)
        return done

    def _after(self, kept: KeptRepair, facts: RepairFacts, outcome: ProgramOutcome) -> AfterStep:
        """Keep how a command ended. A reboot is over only when the machine has another boot."""
        said = outcome.line or outcome.why
        if outcome.code != 0:
            code = "" if outcome.code is None else f"exit code {outcome.code}; "
            self._answer(kept, AgentAnswer.FAILED, f"it failed: {code}{said}")
            return AfterStep()
        if kept.action is Action.REBOOT:
            self._answer(kept, AgentAnswer.ACCEPTED, "the machine was asked to start again")
            return AfterStep()
        names = ", ".join(facts.gpus)
        self._answer(kept, AgentAnswer.DONE, f"{names} reset" + (f": {said}" if said else ""))
        return AfterStep(facts.gpus)

    def _read(self) -> tuple[bytes, RepairRequest | None]:
        """Return the text of the file, and what it asks for where it has changed."""
        data = b""
        try:
            data = read_file(Path(self._settings.requests), REQUEST_BYTES_MAX)
            request = decode_request(data) if data != self._handled else None
        except FileNotFoundError:
            return data, None
        except (OSError, UnreadableRequest) as error:
            trouble = f"{self._settings.requests}: {error}"
            if trouble != self._trouble:
                self._log.warning("Left a request aside", error=trouble)
            self._trouble = trouble
            return data, None
        self._trouble = ""
        return data, request

    def _settle(self, now: Moment, *, is_start: bool = False) -> None:
        """Say what became of requests that were being carried out."""
        for each in tuple(self._kept.values()):
            if each.answer is not AgentAnswer.ACCEPTED:
                continue
            if each.action is Action.REBOOT and each.boot_id != self._boot_id:
                self._answer(each, AgentAnswer.DONE, "the machine has started again")
            elif each.action is Action.REBOOT:
                waited = now.uptime_seconds - each.uptime_seconds
                if waited >= self._settings.reboot_seconds:
                    text = f"the machine has not started again within {waited:.0f} s"
                    self._answer(each, AgentAnswer.FAILED, text)
            elif is_start:
                text = "the agent ended before the result was known"
                self._answer(each, AgentAnswer.FAILED, text)

    def _answer(self, kept: KeptRepair, answer: AgentAnswer, message: str) -> None:
        if (answer, message) == (kept.answer, kept.message):
            return
        self._keep(msgspec.structs.replace(kept, answer=answer, message=message[:WHY_MAX]))
        self._log.warning("Answered a request", action=kept.action.value, id=kept.id,
                          answer=answer.value, message=message)  # fmt: skip

    def _keep(self, kept: KeptRepair) -> None:
        self._state.keep_repair(kept)
        self._kept[kept.id] = kept
        self._forget()

    def _forget(self) -> None:
        """Bound what is kept: refusals by number, the rest by age."""
        refused = [each.id for each in self._kept.values() if not each.counts]
        latest = self._host.now().time - _KEPT_SECONDS
        old = [each.id for each in self._kept.values() if each.counts and each.at < latest]
        gone = (*refused[:-_REFUSALS_MAX], *old)
        if gone:
            self._state.forget_repairs(gone)
            for id_ in gone:
                del self._kept[id_]


async def in_thread(call: Callable[[], R]) -> R:
    """Return what a call returns that may block for long; a thread of its own holds up no end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def serve() -> None:
        finish: Callable[[], None]
        try:
            finish = partial(future.set_result, call())
        except Exception as error:  # noqa: BLE001 # goes to the loop
            finish = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else finish())

    threading.Thread(target=serve, name="repair", daemon=True).start()
    return await future
