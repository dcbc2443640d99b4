"""Azure's REST API for virtual machine scale sets, over HTTP on loopback or within a process.

It keeps what makes the real one hard: instance ids of its own choice, operations that take time,
fail in part and end one another, ETags, machines that stay after they failed, a capacity above the
number of machines, lists that are late and come in pages, throttling buckets, and errors before
and after an effect.
`clock` gives its time, so it runs in virtual time, too.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import BaseAdapter
from tests.e2e.rest_server import Answer, on_loopback

SUBSCRIPTION = "6f1c5a3e-0000-4000-8000-1c2d3e4f5a6b"
RESOURCE_GROUP, LOCATION = "Research", "westeurope"
GROUP, ZONE, OTHER_ZONE = "h100", "westeurope-1", "westeurope-2"
_SETS = "/providers/Microsoft.Compute/virtualMachineScaleSets/"
_SET_PATH = re.compile(
    rf"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}{_SETS}(?P<set>[^/]+)"
    r"(?P<rest>|/virtualMachines|/delete|/virtualMachines/(?P<vm>\d+)/performMaintenance)"
)
_OPERATIONS = (
    f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{LOCATION}/operations/"
)
_IMPACT = re.compile(
    rf"/subscriptions/{SUBSCRIPTION}/providers/Microsoft\.Impact/workloadImpacts/(?P<name>[-a-z0-9.]+)"
)
_VERBS = {
    ("GET", ""): "read", ("PATCH", ""): "launch", ("GET", "/virtualMachines"): "list",
    ("POST", "/delete"): "terminate",
}  # fmt: skip
#: What Azure's buckets hold for one scale set, and their refill a minute.
_BUCKETS = {
    "read": (36.0, 12.0), "launch": (12.0, 4.0), "terminate": (12.0, 4.0),
    "maintain": (12.0, 4.0), "operation": (45.0, 15.0), "list": (1080.0, 360.0),
    "report": (12.0, 4.0),
}  # fmt: skip


@dataclass(slots=True)
class AzureFault:
    """An error of one call: an HTTP status and a code. `after`: the call has had its effect."""

    operation: str
    code: tuple[int, str]
    after: bool = False
    retry_after: str = ""


class AzureError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        headers = {"Retry-After": retry_after} if retry_after else {}
        self.answer = Answer({"error": {"code": code, "message": message}}, status, headers)


@dataclass(slots=True)
class Vm:
    """A machine of a scale set: `power` is "" while it was never started."""

    id: str
    vm_id: str
    try_at: float
    listed_at: float
    provisioning: str = "Creating"
    power: str = ""
    error: str = ""
    gone_at: float = float("inf")


@dataclass(slots=True)
class Op:
    """An operation: done when its machines are made or have failed, not before `done_at`."""

    name: str
    scale_set: str
    verb: str
    done_at: float
    vms: list[Vm]
    error: str = ""
    is_done: bool = False

    def wire(self) -> dict[str, Any]:
        if not self.is_done:
            return {"name": self.name, "status": "InProgress"}
        if not self.error:
            return {"name": self.name, "status": "Succeeded"}
        error = {"code": self.error, "message": "planted"}
        return {"name": self.name, "status": "Failed", "error": error}


@dataclass(slots=True)
class FakeSet:
    """A scale set."""

    name: str
    zones: list[str]
    capacity: int = 0
    etag: int = 1
    ids: int = 0
    has_failed: bool = False
    tags: dict[str, str] = field(default_factory=lambda: {"fairlead-pool": GROUP, "team": "ml"})
    properties: dict[str, Any] = field(
        default_factory=lambda: {
            "orchestrationMode": "Uniform", "overprovision": False,
            "upgradePolicy": {"mode": "Manual"},
        }
    )  # fmt: skip
    vms: dict[str, Vm] = field(default_factory=dict[str, Vm])
    ghosts: list[Vm] = field(default_factory=list[Vm])

    @property
    def zone(self) -> str:
        """What the capacity of the zone is kept under."""
        return self.name.removeprefix(f"{GROUP}-")


def _sets() -> dict[str, FakeSet]:
    zonal = [FakeSet(f"{GROUP}-{zone}", [zone[-1]]) for zone in (ZONE, OTHER_ZONE)]
    return {each.name: each for each in (FakeSet(GROUP, []), *zonal)}


@dataclass(slots=True)
class AzureServer:
    """What the tests plan and see. Durations in seconds of `clock`."""

    clock: Callable[[], float] = time.monotonic
    operation_seconds: float = 0.02
    create_seconds: float = 0.02
    delete_seconds: float = 0.02
    lag_seconds: float = 0.0
    page_max: int = 500
    #: Whether the published rates are enforced.
    has_buckets: bool = False
    #: Whether a machine that could not be made stays in its scale set.
    keeps_failed: bool = True
    draw_id: Callable[[FakeSet], int] | None = None
    faults: list[AzureFault] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    #: Machines that a zone still has; no limit for a zone that is not named.
    capacity: dict[str, int] = field(default_factory=dict)
    #: Codes of the next operations, which make nothing, and of the next machines.
    operation_errors: list[str] = field(default_factory=list)
    machine_errors: list[str] = field(default_factory=list)
    sets: dict[str, FakeSet] = field(default_factory=_sets)
    operations: dict[str, Op] = field(default_factory=dict)
    #: Machines that ever existed, by their unique ids; those that Azure chose to delete.
    made: Counter[str] = field(default_factory=Counter)
    chosen: list[str] = field(default_factory=list)
    #: Reports of hosts, by their names.
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Machines whose maintenance was begun.
    ongoing: set[tuple[str, str]] = field(default_factory=set)
    #: Maintenance ahead, by the scale set and the instance id of the machine: its start and end.
    maintenance: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    throttled: Counter[str] = field(default_factory=Counter)
    tokens: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    now: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def machines(self) -> dict[tuple[str, str], str]:
        """Return the machines that exist, and are not being deleted, and their unique ids."""
        with self.lock:
            self._advance()
            return {
                (each.name, vm.id): vm.vm_id
                for each in self.sets.values()
                for vm in each.vms.values()
                if vm.power and vm.provisioning != "Deleting"
            }

    def listed(self) -> int:
        """Return how many machines the scale sets have, whatever their state."""
        with self.lock:
            self._advance()
            return sum(len(each.vms) for each in self.sets.values())

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            for kept in (self.faults, self.calls, self.capacity, self.operation_errors,
                         self.machine_errors, self.operations, self.made, self.chosen,
                         self.throttled, self.tokens, self.maintenance, self.ongoing,
                         self.reports):  # fmt: skip
                kept.clear()
            self.sets = _sets()
            self.lag_seconds, self.page_max, self.keeps_failed = 0.0, 500, True

    def end_operations(self, verb: str, error: str) -> None:
        """End the operations of a kind that are under way: another one has taken over."""
        with self.lock:
            self._advance()
            for op in self.operations.values():
                if op.verb == verb and not op.is_done:
                    op.is_done, op.error = True, error
                    for vm in op.vms:
                        if verb == "terminate" and vm.gone_at < float("inf"):
                            vm.provisioning, vm.gone_at = "Succeeded", float("inf")

    # Requests

    def handle(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Answer one request."""
        with self.lock:
            self._advance()
            split = urlsplit(url)
            query = {key: values[-1] for key, values in parse_qs(split.query).items()}
            sent = {name.lower(): value for name, value in headers.items()}
            host = f"http://{split.netloc or sent['host']}"
            try:
                return self._route(method, split.path, {**sent, "host": host}, query, body)
            except AzureError as error:
                return error.answer

    def _route(
        self, method: str, path: str, headers: dict[str, str], query: dict[str, str],
        body: bytes | None,
    ) -> Answer:  # fmt: skip
        assert query["api-version"], "every call states the version of the API"
        if impact := _IMPACT.fullmatch(path):
            return self._report(method, impact["name"], json.loads(body or b"{}"))
        found = _SET_PATH.fullmatch(path)
        is_operation = path.startswith(_OPERATIONS)
        if found is None and not is_operation:
            raise AzureError(404, "ResourceNotFound", f"no such path {path}")
        is_begun = found is not None and found["vm"] is not None
        verb = "operation" if found is None else "maintain" if is_begun else ""
        verb = verb or _VERBS[method, found["rest"]]  # type: ignore[index]
        self.calls[verb] += 1
        name = "" if found is None else found["set"]
        self._take(verb, name)
        self._meet(verb, after=False)
        if found is None:
            op = self.operations.get(path.removeprefix(_OPERATIONS))
            if op is None:
                raise AzureError(404, "NotFound", "no such operation")
            answer = Answer(op.wire())
        elif name not in self.sets:
            raise AzureError(404, "ResourceNotFound", f"no scale set {name}")
        else:
            plain = json.loads(body or b"{}") if not is_begun else {"vm": found["vm"]}
            answer = self._act(verb, self.sets[name], headers, query, plain)
        self._meet(verb, after=True)
        return answer

    def _report(self, method: str, name: str, body: dict[str, Any]) -> Answer:
        assert method == "PUT"
        self.calls["report"] += 1
        self._take("report", "")
        self._meet("report", after=False)
        known = {vm.vm_id for each in self.sets.values() for vm in each.vms.values()}
        if body["properties"]["additionalProperties"]["VmUniqueId"] not in known:
            raise AzureError(400, "InvalidResource", "no such machine")
        self.reports[name] = body["properties"]
        self._meet("report", after=True)
        return Answer({"name": name}, 201)

    def _take(self, verb: str, name: str) -> None:
        """Count a call in its bucket: those of operations and lists are the subscription's."""
        if not self.has_buckets:
            return
        holds, per_minute = _BUCKETS[verb]
        key = (verb, "" if verb in ("list", "operation") else name)
        left, at = self.tokens.get(key, (holds, self.now))
        left = min(holds, left + (self.now - at) * per_minute / 60) - 1
        if left < 0:
            self.throttled[verb] += 1
            raise AzureError(429, "TooManyRequests", f"{verb}: wait a minute", "60")
        self.tokens[key] = (left, self.now)

    def _meet(self, verb: str, *, after: bool) -> None:
        for fault in self.faults:
            if (fault.operation, fault.after) == (verb, after):
                self.faults.remove(fault)
                raise AzureError(*fault.code, "planted", fault.retry_after)

    def _act(
        self, verb: str, group: FakeSet, headers: dict[str, str], query: dict[str, str],
        body: dict[str, Any],
    ) -> Answer:  # fmt: skip
        match verb:
            case "read":
                return Answer(self._wire(group))
            case "list":
                return self._list(group, headers["host"], query)
            case "launch":
                return self._update(group, headers, body)
            case "maintain":
                return self._begin_maintenance(group, body["vm"])
            case _:
                return self._delete(group, headers, body["instanceIds"])

    def _begin_maintenance(self, group: FakeSet, id_: str) -> Answer:
        if id_ not in group.vms or (group.name, id_) not in self.maintenance:
            raise AzureError(409, "OperationNotAllowed", "no maintenance can be begun")
        self.ongoing.add((group.name, id_))
        return Answer({}, 202)

    def _wire(self, group: FakeSet) -> dict[str, Any]:
        running = any(
            op.scale_set == group.name and not op.is_done for op in self.operations.values()
        )
        busy = running or any(vm.gone_at < float("inf") for vm in group.vms.values())
        state = "Updating" if busy else "Failed" if group.has_failed else "Succeeded"
        return {
            "name": group.name, "location": LOCATION, "tags": dict(group.tags),
            "sku": {"name": "Standard_ND96isr_H100_v5", "tier": "Standard",
                    "capacity": group.capacity},
            "zones": group.zones, "etag": f'"{group.etag}"',
            "properties": {**group.properties, "provisioningState": state},
        }  # fmt: skip

    def _list(self, group: FakeSet, host: str, query: dict[str, str]) -> Answer:
        assert query["$expand"] == "instanceView", "without it there is no power state"
        found = [vm for vm in (*group.vms.values(), *group.ghosts) if vm.listed_at <= self.now]
        start = int(query.get("$skiptoken") or 0)
        part = found[start : start + self.page_max]
        page: dict[str, Any] = {
            "value": [
                _machine(
                    vm,
                    group,
                    self.maintenance.get((group.name, vm.id)),
                    may_begin=(group.name, vm.id) not in self.ongoing,
                )
                for vm in part
            ]
        }
        if start + self.page_max < len(found):
            path = (
                f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}{_SETS}{group.name}"
            )
            rest = f"api-version={query['api-version']}&$expand=instanceView"
            page["nextLink"] = (
                f"{host}{path}/virtualMachines?{rest}&$skiptoken={start + self.page_max}"
            )
        return Answer(page)

    def _update(self, group: FakeSet, headers: dict[str, str], body: dict[str, Any]) -> Answer:
        if "if-match" in headers and headers["if-match"] != f'"{group.etag}"':
            raise AzureError(412, "PreconditionFailed", "the ETag is another one")
        tags, capacity = body["tags"], int(body["sku"]["capacity"])
        if len(tags) > 50 or any(len(value) > 256 for value in tags.values()):
            raise AzureError(400, "InvalidTag", "too many tags, or one is too long")
        if any(set(name) & set("<>%&\\?/") for name in tags):
            raise AzureError(400, "InvalidTagNameCharacters", "a tag's name")
        group.tags, group.capacity = dict(tags), capacity
        self._end_others(group)
        if self.operation_errors:
            error = self.operation_errors.pop(0)
            return self._begin(group, "launch", headers, error=error)
        alive = [vm for vm in group.vms.values() if vm.provisioning != "Deleting"]
        for vm in alive[capacity:]:  # it chooses
            self.chosen.append(vm.id)
            vm.provisioning, vm.gone_at = "Deleting", self.now + self.delete_seconds
        made = [self._new(group) for _ in range(capacity - len(group.vms))]
        return self._begin(group, "launch", headers, made)

    def _new(self, group: FakeSet) -> Vm:
        number = group.ids if self.draw_id is None else self.draw_id(group)
        group.ids += 1
        assert str(number) not in group.vms
        at = self.now
        vm = Vm(str(number), str(uuid.uuid4()), at + self.create_seconds, at + self.lag_seconds)
        group.vms[vm.id] = vm
        return vm

    def _delete(self, group: FakeSet, headers: dict[str, str], ids: list[str]) -> Answer:
        for id_ in ids:
            if id_ not in group.vms or group.vms[id_].provisioning == "Deleting":
                text = (
                    f"The provided instanceId {id_} is not an active Virtual Machine Scale Set VM"
                )
                raise AzureError(400, "InvalidParameter", f"{text} instanceId.")
        self._end_others(group)
        if self.operation_errors:
            return self._begin(group, "terminate", headers, error=self.operation_errors.pop(0))
        for id_ in ids:
            vm = group.vms[id_]
            vm.provisioning, vm.gone_at = "Deleting", self.now + self.delete_seconds
        return self._begin(group, "terminate", headers, [group.vms[id_] for id_ in ids])

    def _end_others(self, group: FakeSet) -> None:
        """End the updates that are under way: the new operation goes on with what they began."""
        for op in self.operations.values():
            if op.scale_set == group.name and op.verb == "launch" and not op.is_done:
                op.is_done, op.error = True, "OperationPreempted"

    def _begin(
        self, group: FakeSet, verb: str, headers: dict[str, str], vms: list[Vm] | None = None,
        *, error: str = "",
    ) -> Answer:  # fmt: skip
        group.etag += 1
        name = f"operation-{len(self.operations) + 1}"
        self.operations[name] = Op(
            name, group.name, verb, self.now + self.operation_seconds, list(vms or ()), error
        )
        address = f"{headers['host']}{_OPERATIONS}{name}?p=1&api-version=2026-04-01"
        body = self._wire(group) if verb == "launch" else {}
        return Answer(body, 200 if verb == "launch" else 202, {"Azure-AsyncOperation": address})

    # Effects

    def _advance(self) -> None:
        """Let happen what is due, one instant after another."""
        end = self.clock()
        while (at := self._next_at()) <= end:
            self.now = at
            for group in self.sets.values():
                for vm in list(group.vms.values()):
                    if vm.gone_at <= at:
                        self._end(group, vm)
                    elif vm.provisioning == "Creating" and vm.try_at <= at:
                        self._try(group, vm)
            for op in self.operations.values():
                if not op.is_done and op.done_at <= at and self._is_settled(op):
                    self._finish(op)
        self.now = end
        for group in self.sets.values():
            group.ghosts = [vm for vm in group.ghosts if vm.gone_at > end]

    def _next_at(self) -> float:
        vms = [vm for group in self.sets.values() for vm in group.vms.values()]
        ops = [op for op in self.operations.values() if not op.is_done]
        return min((
            *(op.done_at for op in ops if self._is_settled(op)),
            *(vm.try_at for vm in vms if vm.provisioning == "Creating"),
            *(vm.gone_at for vm in vms),
        ), default=float("inf"))  # fmt: skip

    def _is_settled(self, op: Op) -> bool:
        there = self.sets[op.scale_set].vms
        if op.verb == "terminate":
            return not any(there.get(vm.id) is vm for vm in op.vms) or bool(op.error)
        return not any(vm.provisioning == "Creating" for vm in op.vms)

    def _finish(self, op: Op) -> None:
        group = self.sets[op.scale_set]
        errors = [vm.error for vm in op.vms if vm.error]
        op.is_done, op.error = True, op.error or next(iter(errors), "")
        group.has_failed = bool(op.error)
        group.etag += 1

    def _end(self, group: FakeSet, vm: Vm) -> None:
        del group.vms[vm.id]
        group.capacity -= 1
        group.etag += 1
        vm.gone_at = self.now + self.lag_seconds
        group.ghosts.append(vm)
        if vm.power and group.zone in self.capacity:
            self.capacity[group.zone] += 1

    def _try(self, group: FakeSet, vm: Vm) -> None:
        if self.machine_errors:
            vm.error = self.machine_errors.pop(0)
        elif self.capacity.get(group.zone, 1) <= 0:
            vm.error = "ZonalAllocationFailed"
        else:
            if group.zone in self.capacity:
                self.capacity[group.zone] -= 1
            vm.provisioning, vm.power = "Succeeded", "running"
            self.made[vm.vm_id] += 1
            return
        vm.provisioning = "Failed"
        if not self.keeps_failed:
            del group.vms[vm.id]  # its place in the capacity stays


def _machine(
    vm: Vm, group: FakeSet, ahead: tuple[str, str] | None, *, may_begin: bool
) -> dict[str, Any]:
    state = vm.provisioning.lower()
    statuses = [{"code": f"ProvisioningState/{state}"}]
    if vm.error:
        code = f"ProvisioningState/failed/{vm.error}"
        statuses = [{"code": code, "message": "Allocation failed."}]
    if vm.power:
        statuses.append({"code": f"PowerState/{vm.power}"})
    view: dict[str, Any] = {"statuses": statuses}
    if ahead is not None:
        view["maintenanceRedeployStatus"] = {
            "isCustomerInitiatedMaintenanceAllowed": may_begin,
            "maintenanceWindowStartTime": ahead[0], "maintenanceWindowEndTime": ahead[1],
        }  # fmt: skip
    properties = {
        "vmId": vm.vm_id, "provisioningState": vm.provisioning, "instanceView": view,
    }  # fmt: skip
    return {"instanceId": vm.id, "location": LOCATION, "zones": group.zones or None,
            "properties": properties}  # fmt: skip


# The SDK's side


def connect_to(url: str, adapter: BaseAdapter | None = None) -> Callable[[str], Any]:
    """Return clients of the SDK for a server."""
    # It takes a part of a second of CPU, and every worker of the tests collects this module.
    from azure.core.credentials import AccessToken
    from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy
    from azure.core.pipeline.transport import RequestsTransport
    from azure.mgmt.compute import ComputeManagementClient

    class Anyone:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken("test", 4_000_000_000)

    made: dict[str, Any] = {}

    def connect(subscription: str) -> Any:
        if subscription not in made:
            options: dict[str, Any] = {}
            if adapter is not None:
                session = requests.Session()
                session.mount("http://", adapter)
                options["transport"] = RequestsTransport(session=session, session_owner=False)
            made[subscription] = ComputeManagementClient(
                Anyone(), subscription, base_url=url, retry_policy=RetryPolicy.no_retries(),
                authentication_policy=SansIOHTTPPolicy(), **options,
            )  # fmt: skip
        return made[subscription]

    return connect


@contextmanager
def azure_server() -> Generator[tuple[AzureServer, str]]:
    """Run the server on loopback; yields it and its address."""
    server = AzureServer()
    with on_loopback(server) as url:
        yield server, url
