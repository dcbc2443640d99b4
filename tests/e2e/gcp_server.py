"""Compute Engine's REST API for managed instance groups, over HTTP on loopback or within a process.

It keeps what makes the real one hard: operations that take time, request ids that name one effect,
a group that tries for ever to make its machines, lists that are late and come in pages, queued
resize requests, throttling, and errors before and after an effect. `clock` gives its time, so it
runs in virtual time, too.
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

from requests.adapters import BaseAdapter
from tests.e2e.rest_server import Answer, on_loopback

from fairlead.cloud.google.gcp_api import GcpServices

PROJECT, ZONE, OTHER_ZONE, GROUP = "ml", "europe-west4-a", "europe-west4-b", "h100"
_PATH = re.compile(
    r"/compute/v1/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/"
    r"(?P<kind>operations|instanceGroupManagers)/(?P<name>[^/]+)/?(?P<rest>.*)"
)
_INSTANCES = re.compile(r"/compute/v1/projects/[^/]+/zones/(?P<zone>[^/]+)/instances")
_FAULTY = re.compile(_INSTANCES.pattern + r"/(?P<name>[^/]+)/reportHostAsFaulty")
_BEGUN = re.compile(_INSTANCES.pattern + r"/(?P<name>[^/]+)/performMaintenance")
_VERBS = {
    "": "group", "listManagedInstances": "list", "createInstances": "launch",
    "deleteInstances": "terminate", "resizeRequests": "launch",
}  # fmt: skip


@dataclass(slots=True)
class GcpFault:
    """An error of one call: an HTTP status and a reason. `after`: the call has had its effect."""

    operation: str
    code: tuple[int, str]
    after: bool = False


class GcpError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "code": status, "message": message,
                "errors": [{"reason": reason, "message": message, "domain": "global"}],
            }
        }  # fmt: skip


@dataclass(slots=True)
class Vm:
    """A machine of a group: `status` is "" while it does not exist."""

    name: str
    zone: str
    try_at: float
    listed_at: float
    action: str = "CREATING"
    status: str = ""
    errors: tuple[str, ...] = ()
    gone_at: float = float("inf")
    #: Of a resize request that waits: it has no URL yet.
    is_queued: bool = False


@dataclass(slots=True)
class Op:
    """An operation: `act` has its effect at its end and returns error codes."""

    name: str
    zone: str
    done_at: float
    request_id: str
    act: Callable[[], list[str]]
    is_done: bool = False
    errors: list[str] = field(default_factory=list)

    def wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": self.name, "zone": self.zone, "clientOperationId": self.request_id,
            "status": "DONE" if self.is_done else "RUNNING",
        }  # fmt: skip
        if self.errors:
            errors = [{"code": code, "message": "planted"} for code in self.errors]
            out |= {"error": {"errors": errors}, "httpErrorStatusCode": 400}
        return out


@dataclass(slots=True)
class Request:
    """A resize request."""

    name: str
    zone: str
    machines: list[str]
    try_at: float
    state: str = "ACCEPTED"
    run_seconds: int = 0


@dataclass(slots=True)
class GcpServer:
    """What the tests plan and see. Durations in seconds of `clock`."""

    clock: Callable[[], float] = time.monotonic
    operation_seconds: float = 0.02
    create_seconds: float = 0.02
    delete_seconds: float = 0.02
    lag_seconds: float = 0.0
    page_max: int = 500
    faults: list[GcpFault] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    #: Machines that a zone still has; no limit for a zone that is not named.
    capacity: dict[str, int] = field(default_factory=dict)
    #: Error codes of the next operations, and of the next attempts to make a machine.
    operation_errors: list[str] = field(default_factory=list)
    attempt_errors: list[str] = field(default_factory=list)
    #: Reports of hosts, by the id of the request: the machine and the body.
    reports: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    #: Machines whose maintenance was begun.
    ongoing: set[str] = field(default_factory=set)
    #: Maintenance ahead of machines: its start and end.
    upcoming: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    zones: tuple[str, ...] = (ZONE, OTHER_ZONE)
    label: str = GROUP
    vms: dict[str, Vm] = field(default_factory=dict)
    ghosts: list[Vm] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)
    operations: dict[str, Op] = field(default_factory=dict)
    request_ids: dict[str, str] = field(default_factory=dict)
    #: Every machine that ever existed, and those that existed twice.
    made: Counter[str] = field(default_factory=Counter)
    #: Until when all that was due has happened.
    now: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def machines(self) -> dict[str, str]:
        """Return the machines that exist, and are not being deleted, and their statuses."""
        with self.lock:
            self._advance()
            found = self.vms.values()
            return {vm.name: vm.status for vm in found if vm.status and vm.action != "DELETING"}

    def attempts(self) -> list[str]:
        """Return the machines that groups still try to make."""
        with self.lock:
            self._advance()
            return [vm.name for vm in self.vms.values() if vm.action == "CREATING"]

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            for kept in (self.faults, self.calls, self.capacity, self.operation_errors, self.vms,
                         self.attempt_errors, self.ghosts, self.requests, self.operations,
                         self.request_ids, self.made, self.upcoming, self.ongoing,
                         self.reports):  # fmt: skip
                kept.clear()
            self.lag_seconds, self.page_max, self.label = 0.0, 500, GROUP

    # Requests

    def handle(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Answer one request."""
        with self.lock:
            self._advance()
            split = urlsplit(url)
            query = {key: values[-1] for key, values in parse_qs(split.query).items()}
            try:
                return Answer(self._route(method, split.path, query, json.loads(body or b"{}")))
            except GcpError as error:
                return Answer(error.body, error.status)

    def _route(
        self, method: str, path: str, query: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        if begun := _BEGUN.fullmatch(path):
            return self._begin_maintenance(method, begun["zone"], begun["name"])
        if faulty := _FAULTY.fullmatch(path):
            return self._report(faulty["zone"], faulty["name"], query, body)
        if instances := _INSTANCES.fullmatch(path):
            self.calls["events"] += 1
            self._meet("events", after=False)
            return self._instances(instances["zone"], query)
        found = _PATH.fullmatch(path)
        if found is None:
            raise GcpError(404, "notFound", f"no such path {path}")
        zone, name, rest = found["zone"], found["name"], found["rest"]
        if found["kind"] == "operations":
            verb = "operation"
        elif rest.startswith("resizeRequests/"):
            verb = "cancel" if rest.endswith("/cancel") else "request"
        else:
            verb = _VERBS[rest]
        self.calls[verb] += 1
        self._meet(verb, after=False)
        if found["kind"] == "operations":
            if name not in self.operations:
                raise GcpError(404, "notFound", "no such operation")
            answer = self.operations[name].wire()
        elif name != GROUP or zone not in self.zones:
            raise GcpError(404, "notFound", f"no group {name}")
        else:
            answer = self._act(verb, zone, rest, query, body)
        self._meet(verb, after=True)
        return answer

    def _meet(self, verb: str, *, after: bool) -> None:
        for fault in self.faults:
            if (fault.operation, fault.after) == (verb, after):
                self.faults.remove(fault)
                raise GcpError(*fault.code, "planted")

    def _act(
        self, verb: str, zone: str, rest: str, query: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        id_ = query.get("requestId", "")
        match verb:
            case "group":
                labels = {"fairlead-pool": self.label} if self.label else {}
                return {"name": GROUP, "allInstancesConfig": {"properties": {"labels": labels}}}
            case "list":
                return self._list(zone, query)
            case "launch" if rest == "createInstances":
                names = [each["name"] for each in body["instances"]]
                return self._begin(zone, id_, lambda: self._create(zone, names))
            case "launch":
                if body["name"] in self.requests and id_ not in self.request_ids:
                    raise GcpError(409, "alreadyExists", "there is such a resize request")
                return self._begin(zone, id_, lambda: self._queue(zone, body))
            case "terminate":
                assert body["skipInstancesOnValidationError"]
                names = [url.rpartition("/")[2] for url in body["instances"]]
                return self._begin(zone, id_, lambda: self._delete(names))
            case _:
                return self._resize(verb, zone, rest.split("/")[1], id_)

    def _begin(self, zone: str, request_id: str, act: Callable[[], list[str]]) -> dict[str, Any]:
        known = self.request_ids.get(request_id) if request_id else None
        if known is not None:
            return self.operations[known].wire()
        name = f"operation-{len(self.operations) + 1}"
        op = Op(name, zone, self.now + self.operation_seconds, request_id, act)
        if self.operation_errors:
            codes = [self.operation_errors.pop(0)]
            op.act = lambda: codes
        self.operations[name] = op
        if request_id:
            self.request_ids[request_id] = name
        return op.wire()

    def _list(self, zone: str, query: dict[str, str]) -> dict[str, Any]:
        now = self.now
        found = sorted(
            (vm for vm in (*self.vms.values(), *self.ghosts)
             if vm.zone == zone and vm.listed_at <= now),
            key=lambda vm: vm.name,
        )  # fmt: skip
        start = int(query.get("pageToken") or 0)
        size = min(self.page_max, int(query.get("maxResults", 500)))
        page: dict[str, Any] = {
            "managedInstances": [_wire(vm) for vm in found[start : start + size]]
        }
        if start + size < len(found):
            page["nextPageToken"] = str(start + size)
        return page

    def _instances(self, zone: str, query: dict[str, str]) -> dict[str, Any]:
        assert query["filter"] == f"name eq {GROUP}-.*"
        found = sorted(vm.name for vm in self.vms.values() if vm.zone == zone and vm.status)
        start = int(query.get("pageToken") or 0)
        end = start + min(self.page_max, int(query["maxResults"]))
        more = {"nextPageToken": str(end)} if end < len(found) else {}
        return {"items": [self._instance(name) for name in found[start:end]], **more}

    def _instance(self, name: str) -> dict[str, Any]:
        start, end = self.upcoming.get(name, ("", ""))
        status = "ONGOING" if name in self.ongoing else "PENDING"
        ahead = {"windowStartTime": start, "windowEndTime": end, "maintenanceStatus": status,
                 "canReschedule": True}  # fmt: skip
        return {"name": name, "resourceStatus": {"upcomingMaintenance": ahead} if start else {}}

    def _report(
        self, zone: str, name: str, query: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        self.calls["report"] += 1
        self._meet("report", after=False)
        vm = self.vms.get(name)
        if vm is None or vm.zone != zone:
            raise GcpError(404, "notFound", f"no machine {name}")
        assert uuid.UUID(query["requestId"])
        self.reports[query["requestId"]] = (name, body)
        self._meet("report", after=True)
        return {"name": f"report-{name}", "status": "RUNNING"}

    def _begin_maintenance(self, method: str, zone: str, name: str) -> dict[str, Any]:
        assert method == "POST"
        vm = self.vms.get(name)
        if vm is None or vm.zone != zone:
            raise GcpError(404, "notFound", f"no machine {name}")
        if name not in self.upcoming or name in self.ongoing:
            raise GcpError(400, "conditionNotMet", "no maintenance can be begun")
        self.ongoing.add(name)
        return {"name": f"maintain-{name}", "status": "RUNNING"}

    def _resize(self, verb: str, zone: str, name: str, id_: str) -> dict[str, Any]:
        request = self.requests.get(name)
        if request is None:
            raise GcpError(404, "notFound", "no such resize request")
        if verb == "cancel":
            return self._begin(zone, id_, lambda: self._cancel(request))
        last = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no H100 here"}
        status = {"lastAttempt": {"error": {"errors": [last]}}}
        return {"name": name, "state": request.state,
                "status": status if request.state == "ACCEPTED" else {}}  # fmt: skip

    # Effects

    def _advance(self) -> None:
        """Let happen what is due, one instant after another."""
        end = self.clock()
        while (at := self._next_at()) <= end:
            self.now = at
            for op in self.operations.values():
                if not op.is_done and op.done_at <= at:
                    op.errors, op.is_done = op.act(), True
            for request in self.requests.values():
                self._try_request(request, at)
            for vm in list(self.vms.values()):
                if vm.gone_at <= at:
                    self._end(vm)
                elif vm.action == "CREATING" and vm.try_at <= at:
                    self._try(vm, at)
        self.now = end
        self.ghosts = [vm for vm in self.ghosts if vm.gone_at > end]

    def _next_at(self) -> float:
        """Return when something happens next."""
        vms = self.vms.values()
        return min((
            *(op.done_at for op in self.operations.values() if not op.is_done),
            *(each.try_at for each in self.requests.values() if each.state == "ACCEPTED"),
            *(vm.try_at for vm in vms if vm.action == "CREATING"),
            *(vm.gone_at for vm in vms),
        ), default=float("inf"))  # fmt: skip

    def _end(self, vm: Vm) -> None:
        del self.vms[vm.name]
        vm.gone_at = self.now + self.lag_seconds
        self.ghosts.append(vm)
        if vm.status and vm.zone in self.capacity:
            self.capacity[vm.zone] += 1

    def _try(self, vm: Vm, now: float) -> None:
        left = self.capacity.get(vm.zone, 1)
        if self.attempt_errors:
            vm.errors = (self.attempt_errors.pop(0),)
        elif left <= 0:
            vm.errors = ("ZONE_RESOURCE_POOL_EXHAUSTED",)
        else:
            if vm.zone in self.capacity:
                self.capacity[vm.zone] -= 1
            vm.action, vm.status, vm.errors = "NONE", "RUNNING", ()
            self.made[vm.name] += 1
            return
        vm.try_at = now + self.create_seconds

    def _try_request(self, request: Request, now: float) -> None:
        if request.state != "ACCEPTED" or request.try_at > now:
            return
        if self.capacity.get(request.zone, len(request.machines)) < len(request.machines):
            request.try_at = now + self.create_seconds
            return
        request.state = "SUCCEEDED"
        for name in request.machines:
            self.vms[name].is_queued = False
            self._try(self.vms[name], now)

    def _create(self, zone: str, names: list[str]) -> list[str]:
        if any(name in self.vms for name in names):
            return ["RESOURCE_ALREADY_EXISTS"]
        now = self.now
        for name in names:
            self.vms[name] = Vm(name, zone, now + self.create_seconds, now + self.lag_seconds)
        return []

    def _queue(self, zone: str, body: dict[str, Any]) -> list[str]:
        names = [each["name"] for each in body["instances"]]
        self._create(zone, names)
        for name in names:
            self.vms[name].is_queued, self.vms[name].try_at = True, float("inf")
        seconds = int(body.get("requestedRunDuration", {}).get("seconds", 0))
        at = self.now + self.create_seconds
        self.requests[body["name"]] = Request(body["name"], zone, names, at, run_seconds=seconds)
        return []

    def _cancel(self, request: Request) -> list[str]:
        if request.state == "ACCEPTED":
            request.state = "CANCELLED"
            for name in request.machines:
                del self.vms[name]
        return []

    def _delete(self, names: list[str]) -> list[str]:
        for name in names:
            vm = self.vms.get(name)
            if vm is not None and vm.action != "DELETING":
                vm.action, vm.gone_at = "DELETING", self.now + self.delete_seconds
        return []


def _wire(vm: Vm) -> dict[str, Any]:
    out: dict[str, Any] = {"name": vm.name, "currentAction": vm.action}
    if not vm.is_queued:
        out["instance"] = f"https://compute/projects/{PROJECT}/zones/{vm.zone}/instances/{vm.name}"
    if vm.status:
        out["instanceStatus"] = vm.status
    if vm.errors:
        errors = [{"code": code, "message": "planted"} for code in vm.errors]
        out["lastAttempt"] = {"errors": {"errors": errors}}
    return out


# The SDK's side


def connect_to(url: str, adapter: BaseAdapter | None = None) -> Callable[[GcpServices], Any]:
    """Return clients of the SDK for a server."""
    # It takes a second of CPU, and every worker of the tests collects this module.
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    made: dict[GcpServices, Any] = {}

    def connect(service: GcpServices) -> Any:
        if service not in made:
            client = getattr(compute_v1, service.value)(
                credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
            )
            if adapter is not None:
                client.transport._session.mount("http://", adapter)
            made[service] = client
        return made[service]

    return connect


@contextmanager
def gcp_server() -> Generator[tuple[GcpServer, str]]:
    """Run the server on loopback; yields it and its address."""
    server = GcpServer()
    with on_loopback(server) as url:
        yield server, url
