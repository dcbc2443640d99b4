"""One launch in a managed instance group, one step after another.

The names of the machines follow from the token of the launch. So a second request with the same
token finds what was made, also after a restart, and however long Google keeps request ids. The
request id follows from the token, too: the same request finds its operation again, and has one
effect while lists are still late.

A group tries for ever to make a machine that it was asked for. A machine that fails for want of
capacity or quota is deleted by name, which ends the attempts.

Resize requests are all or none: Google makes all of the machines, or none and keeps the request in
a queue. Its name follows from the token as well. A request that has waited too long is cancelled.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.cloud.errors import NotThere
from fairlead.cloud.google.gcp_api import (
    WORDS,
    AlreadyThere,
    GcpServices,
    stated_errors,
)
from fairlead.cloud.google.gcp_group import OPERATION_SECONDS_MAX, InstanceGroup, Managed, is_done
from fairlead.cloud.provider import CloudError, LaunchPending, OutOfCapacity, RefusedByProvider

#: A machine of which nothing is known so long after its operation has ended has failed; lists are
#: not later than that.
SETTLE_SECONDS = 120.0
QUEUE_SECONDS = 300.0
#: Between two looks at a launch: at first, and at most.
LOOK_SECONDS, LOOK_SECONDS_MAX = 2.0, 15.0
_LOOKS_FACTOR = 1.5
#: Names are at most 63 characters: this much of the group, a digest and a number.
_GROUP_SHOWN_MAX, _DIGEST = 40, 12
_IDS = uuid.UUID("5f0d8f0e-52c1-4f7e-9a44-6a1f3f2f9f11")


def machine_names(group: str, token: str, count: int) -> tuple[str, ...]:
    """Return the names of the machines of a launch."""
    digest = hashlib.sha256(token.encode()).hexdigest()[:_DIGEST]
    start = group[:_GROUP_SHOWN_MAX].rstrip("-")
    return tuple(f"{start}-{digest}-{i:03d}" for i in range(count))


@dataclass(slots=True)
class GcpLaunch:
    """A launch as this process knows it; a new process starts again with the same token."""

    group: InstanceGroup
    token: str
    machines: tuple[str, ...]
    options: Mapping[str, str]
    _is_sent: bool = False
    _is_cancelled: bool = False
    _operation: str = ""
    #: What the operation failed of.
    _error: CloudError | None = None
    _sent_at: float = 0.0
    #: When the operation was first seen to have ended, or the machines to be there.
    _done_at: float | None = None
    _look_at: float = float("-inf")
    _look_seconds: float = 0.0
    _said: str = ""

    async def step(self) -> tuple[str, ...]:
        """Return the machines that were made, once all are made or have failed.

        LaunchPending: ask again. CloudError: a call failed, ask again. OutOfCapacity,
        RefusedByProvider: there are none, and there will be none.
        """
        now = _now()
        if now < self._look_at:
            raise LaunchPending(self._said)
        longer = self._look_seconds * _LOOKS_FACTOR
        self._look_seconds = min(max(longer, LOOK_SECONDS), LOOK_SECONDS_MAX)
        self._look_at = now + self._look_seconds
        if self.options.get("resizeRequests") == "true":
            return await self._step_request()
        return await self._step_machines()

    def _pending(self, what: str) -> LaunchPending:
        self._said = f"GCP: {self.group.zone}: {what}"
        return LaunchPending(self._said)

    # Machines one by one

    async def _step_machines(self) -> tuple[str, ...]:
        if not self._is_sent:
            await self._send_machines()
        if self._done_at is None:
            await self._look_at_operation()
        found = await self._machines()
        made, failed, open_ = self._sorted(found)
        assert self._done_at is not None
        if open_ and _now() < self._done_at + SETTLE_SECONDS:
            raise self._pending(f"{len(open_)} of {len(self.machines)} machines are being made")
        for name in open_:
            machine = found.get(name)
            if machine is not None and not machine.errors:
                made.append(name)
            else:
                why = machine.errors[0] if machine is not None else self._error
                text = f"GCP: {self.group.zone}: no machine within {SETTLE_SECONDS:.0f} s"
                failed[name] = OutOfCapacity(str(why or text))
        await self._delete(name for name in failed if name in found)
        if made:
            return tuple(sorted(made))
        raise min(failed.values(), key=_kind_order)

    async def _machines(self) -> dict[str, Managed]:
        """Return all machines of the group; CloudError: what was launched is not known."""
        try:
            found, is_complete = await self.group.machines()
        except NotThere:
            raise
        except CloudError as error:  # refused to look is no answer to the launch
            raise CloudError(str(error)) from error
        if not is_complete:
            raise CloudError(f"GCP: {self.group.zone}: the list of machines was cut")
        return found

    async def _delete(self, machines: Iterable[str]) -> None:
        """End the attempts to make these machines."""
        try:
            await self.group.delete(sorted(machines))
        except CloudError as error:
            raise CloudError(str(error)) from error

    async def _send_machines(self) -> None:
        """Ask for the machines, unless some are there: Google may have dropped the request id."""
        found = await self._machines()
        self._sent_at = _now()
        if any(name in found for name in self.machines):
            self._done_at = self._sent_at
        else:
            operation = await self.group.call(
                GcpServices.GROUPS, "create_instances_unary", request_id=self._request_id,
                instance_group_managers_create_instances_request_resource={
                    "instances": [{"name": name} for name in self.machines]
                },
            )  # fmt: skip
            self._note_operation(operation)
        self._is_sent = True

    def _sorted(
        self, found: Mapping[str, Managed]
    ) -> tuple[list[str], dict[str, CloudError], list[str]]:
        """Return the machines that are made, those that failed and why, and the others."""
        made, open_ = list[str](), list[str]()
        failed: dict[str, CloudError] = {}
        for name in self.machines:
            machine = found.get(name)
            if machine is not None and machine.action == "DELETING":
                failed[name] = OutOfCapacity(f"GCP: {name} is being deleted")
            elif machine is not None and machine.exists:
                made.append(name)
            elif (
                machine is not None and machine.errors and _is_final(WORDS.error_of(machine.errors))
            ):
                failed[name] = WORDS.error_of(machine.errors)
            elif machine is None and self._error is not None and _is_final(self._error):
                failed[name] = self._error
            else:
                open_.append(name)
        return made, failed, open_

    # Resize requests

    async def _step_request(self) -> tuple[str, ...]:
        if not self._is_sent:
            found = await self._machines()
            if all(name in found and found[name].exists for name in self.machines):
                return self.machines  # its resize request may have been deleted since
            await self._send_request()
        request = await self._request()
        if request.state == "SUCCEEDED":
            return self.machines
        if request.state in ("FAILED", "CANCELLED"):
            found = WORDS.error_of(
                stated_errors(request.status.error.errors and request.status.error)
            )
            if isinstance(found, RefusedByProvider):
                raise found
            if self._is_cancelled or request.state == "CANCELLED":
                raise OutOfCapacity(f"GCP: {self.group.zone}: the resize request found no capacity")
            raise OutOfCapacity(str(found))
        if _now() >= self._sent_at + self._queue_seconds and not self._is_cancelled:
            await self._ask("cancel_unary")
            self._is_cancelled = True
        last = stated_errors(request.status.last_attempt.error)
        why = f": {last[0].code}" if last else ""
        raise self._pending(f"the resize request for {len(self.machines)} machines waits{why}")

    async def _request(self) -> Any:
        """Return the resize request; LaunchPending while it is not listed yet."""
        try:
            return await self._ask("get")
        except NotThere:
            pass
        except CloudError as error:  # refused to look is no answer to the launch
            raise CloudError(str(error)) from error
        if self._done_at is None:
            await self._look_at_operation()
        if self._error is not None and _is_final(self._error):
            raise self._error
        assert self._done_at is not None
        if _now() < self._done_at + SETTLE_SECONDS:
            raise self._pending("the resize request is not listed yet")
        raise OutOfCapacity(str(self._error or f"GCP: {self.group.zone}: no resize request"))

    async def _send_request(self) -> None:
        body: dict[str, Any] = {
            "name": self._request_name,
            "instances": [{"name": name} for name in self.machines],
        }
        if "runSeconds" in self.options:
            body["requested_run_duration"] = {"seconds": int(self.options["runSeconds"])}
        self._sent_at = _now()
        try:
            operation = await self.group.call(
                GcpServices.RESIZE_REQUESTS, "insert_unary", request_id=self._request_id,
                instance_group_manager_resize_request_resource=body,
            )  # fmt: skip
            self._note_operation(operation)
        except AlreadyThere:
            self._done_at = self._sent_at
        self._is_sent = True

    async def _ask(self, method: str) -> Any:
        return await self.group.call(
            GcpServices.RESIZE_REQUESTS, method, resize_request=self._request_name
        )

    @property
    def _request_name(self) -> str:
        return self.machines[0].rpartition("-")[0]

    @property
    def _queue_seconds(self) -> float:
        return float(self.options.get("queueSeconds", QUEUE_SECONDS))

    # Operations

    @property
    def _request_id(self) -> str:
        return str(uuid.uuid5(_IDS, f"{self.group.project}/{self._request_name}"))

    def _note_operation(self, operation: Any) -> None:
        self._operation = operation.name
        if is_done(operation):
            self._done_at, self._error = _now(), _error_of(operation)

    async def _look_at_operation(self) -> None:
        """Return once the operation has ended; LaunchPending before."""
        operation = await self.group.operation(self._operation)
        if operation is not None and is_done(operation):
            self._note_operation(operation)
        elif operation is None or _now() >= self._sent_at + OPERATION_SECONDS_MAX:
            self._done_at = _now()
        else:
            raise self._pending(f"operation {self._operation} is under way")


def _error_of(operation: Any) -> CloudError | None:
    """Return what an operation failed of. That machines exist already is no failure."""
    errors = stated_errors(operation.error)
    if not errors or all("ALREADY_EXISTS" in each.code for each in errors):
        return None
    return WORDS.error_of(errors)


def _is_final(error: CloudError) -> bool:
    """True for what trying again does not mend."""
    return isinstance(error, OutOfCapacity | RefusedByProvider)


def _kind_order(error: CloudError) -> bool:
    """Want of capacity before what is refused: another zone may have it."""
    return not isinstance(error, OutOfCapacity)


def _now() -> float:
    return asyncio.get_running_loop().time()
