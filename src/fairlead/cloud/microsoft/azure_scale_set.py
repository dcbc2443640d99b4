"""A virtual machine scale set: its model, machines and operations, and deletions by instance id.

The model is read with its ETag and written only where the ETag is still the same. So a write is
decided on what it changes, and a write that is sent twice has one effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any

from fairlead.api import names
from fairlead.cloud.errors import NotThere, Stated
from fairlead.cloud.microsoft.azure_api import (
    WORDS,
    Azure,
    AzureOperation,
    Bucket,
    Place,
    Question,
    begun,
    headers_of,
    operation_at,
)
from fairlead.cloud.provider import CloudError, RefusedByProvider
from fairlead.model.health.machines import InstanceState
from fairlead.model.health.windows import window_text

#: Machines of one deletion; pages of one list.
DELETIONS_MAX, PAGES_MAX = 100, 100
_TAG_SECONDS = 300.0
#: An operation that lasts longer is looked at no more.
OPERATION_SECONDS_MAX = 1800.0
#: A machine whose instance id another machine had is listed after so long, when the first one is
#: known to be gone.
REUSED_SECONDS = 180.0
_IDS_KEPT_MAX = 5_000

_BUSY = ("Creating", "Updating", "Deleting", "Migrating")
_RUNNING, _STOPPED = ("running", "starting"), ("stopping", "stopped", "deallocating", "deallocated")


@dataclass(frozen=True, slots=True)
class ScaleSetMachine:
    """A machine as its scale set lists it. `power`: "" while it was never started."""

    id: str
    vm_id: str
    provisioning: str
    power: str
    zone: str = ""
    errors: tuple[Stated, ...] = ()
    #: START/END of planned maintenance; "" while none is announced.
    maintenance: str = ""
    #: Azure would begin that at once, if it were asked.
    may_begin: bool = False

    @property
    def exists(self) -> bool:
        """True once resources are the machine's own: before, it may still fail for want of them."""
        return self.provisioning in ("Succeeded", "Updating") or self.power in _RUNNING

    @property
    def has_failed(self) -> bool:
        """True for a machine that was not made; Azure does not try again."""
        return self.provisioning in ("Failed", "Canceled") and not self.power

    @property
    def state(self) -> InstanceState:
        """What a fleet makes of it. One that was not made is starting for ever: it is replaced."""
        if self.provisioning == "Deleting" or self.power in _STOPPED:
            return InstanceState.STOPPING
        return InstanceState.RUNNING if self.exists or self.power else InstanceState.STARTING


@dataclass(frozen=True, slots=True)
class ScaleSetModel:
    """A scale set as it is defined. `capacity`: how many machines it is to have."""

    etag: str
    capacity: int
    sku: Mapping[str, Any]
    tags: Mapping[str, str]
    location: str
    is_busy: bool
    #: What keeps Fairlead from using it, each with the remedy.
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class ScaleSet:
    """One scale set. `domain`: of the pool, "" for the only one."""

    azure: Azure
    place: Place
    domain: str = ""
    location: str = ""
    _pool: str = ""
    _pool_at: float = float("-inf")
    #: Deletions under way: since when, and of which instance ids.
    _deleting: dict[str, tuple[float, frozenset[str]]] = field(
        default_factory=dict[str, tuple[float, frozenset[str]]]
    )
    #: Unique ids of the machines that were listed last, and of those that were deleted.
    _vm_ids: dict[str, str] = field(default_factory=dict[str, str])
    _deleted: dict[str, str] = field(default_factory=dict[str, str])
    _reused_at: dict[str, float] = field(default_factory=dict[str, float])
    #: The latest list that is complete.
    _machines: dict[str, ScaleSetMachine] = field(default_factory=dict[str, ScaleSetMachine])
    _listed_at: float = float("-inf")

    @property
    def name(self) -> str:
        """The name of the scale set."""
        return self.place.scale_set

    async def model(self) -> ScaleSetModel:
        """Return the definition, with one call. RefusedByProvider, CloudError."""
        place = self.place
        try:
            found = await self._call(
                Bucket.READ,
                lambda c: c.virtual_machine_scale_sets.get(place.resource_group, place.scale_set),
            )
        except NotThere as error:
            raise self._not_there() from error
        model = _model(found, is_one_zone=bool(self.domain))
        self.location = model.location
        tags = {key.lower(): value for key, value in model.tags.items()}
        self._pool, self._pool_at = tags.get(names.CLOUD_POOL, ""), _now()
        return model

    async def write(self, model: ScaleSetModel, tags: Mapping[str, str], capacity: int) -> str:
        """Set the tags and the capacity, if nothing has changed since `model` was read.

        Returns the operation. Changed: something has. OutOfCapacity, RefusedByProvider, CloudError.
        """
        assert capacity >= model.capacity, "a lower capacity lets Azure choose what to delete"
        body = {"tags": dict(tags), "sku": {**model.sku, "capacity": capacity}}
        place = self.place

        def update(client: Any) -> str:
            conditions = import_module("azure.core").MatchConditions
            return begun(
                client.virtual_machine_scale_sets.begin_update(
                    place.resource_group, place.scale_set, body, etag=model.etag,
                    match_condition=conditions.IfNotModified, polling=False, cls=headers_of,
                )
            )  # fmt: skip

        return await self._call(Bucket.UPDATE, update)

    async def machines(
        self, newer_than: float = float("inf")
    ) -> tuple[dict[str, ScaleSetMachine], bool]:
        """Return all machines by their instance ids, page by page, and whether these are all.

        A complete list that is newer than an instant is not asked for again.
        """
        if self._listed_at > newer_than:
            return self._machines, True
        began_at = _now()
        found: dict[str, ScaleSetMachine] = {}
        token = None
        for _ in range(PAGES_MAX):
            try:
                page, token = await self._call(Bucket.LIST, self._page(token))
            except NotThere as error:
                raise self._not_there() from error
            except CloudError:
                if not found:
                    raise
                return found, False
            found.update((machine.id, machine) for machine in page)
            self._check_ids(found)
            if not token:
                self._note(found, began_at)
                return found, True
        return found, False

    def _check_ids(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            if not (id_.isdecimal() and id_.isascii()):
                text = f"an instance id of scale set {self.name!r} is no number: {id_[:40]!r}"
                help_ = "pools need scale sets with the orchestration mode Uniform"
                raise RefusedByProvider(f"Azure: {text}; {help_}")

    def _page(self, token: Any) -> Question:
        place = self.place

        def page(client: Any) -> tuple[list[ScaleSetMachine], Any]:
            listed = client.virtual_machine_scale_set_vms.list(
                place.resource_group, place.scale_set, expand="instanceView"
            )
            pages = listed.by_page(token)
            machines = [_machine(each) for each in next(pages, ())]
            return machines, pages.continuation_token

        return page

    def _note(self, found: dict[str, ScaleSetMachine], at: float) -> None:
        self._machines, self._listed_at = found, at
        self._vm_ids = {machine.id: machine.vm_id for machine in found.values()}
        for id_, vm_id in self._vm_ids.items():
            if self._deleted.get(id_, vm_id) != vm_id:
                self._reused_at.setdefault(id_, at)
                if at >= self._reused_at[id_] + REUSED_SECONDS:
                    del self._deleted[id_], self._reused_at[id_]

    def is_reused(self, id_: str) -> bool:
        """True for an instance id that belonged to a deleted machine a moment ago."""
        return id_ in self._reused_at

    async def pool(self) -> str:
        """Return the pool that the scale set's tag names; "" without one."""
        if _now() >= self._pool_at + _TAG_SECONDS:
            await self.model()
        return self._pool

    async def operation(self, address: str) -> AzureOperation | None:
        """Return an operation; None when Azure keeps it no more."""
        try:
            return await self._call(Bucket.OPERATION, lambda c: operation_at(c, address))
        except NotThere:
            return None

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete machines by instance id; those that are gone are no mistake. CloudError.

        Azure uses instance ids again. One that another machine has by now is left out.
        """
        await self._look_at_deletions()
        under_way = {id_ for _, part in self._deleting.values() for id_ in part}
        left = [id_ for id_ in ids if id_ not in under_way and not self.is_reused(id_)]
        for start in range(0, len(left), DELETIONS_MAX):
            await self._delete(left[start : start + DELETIONS_MAX])

    async def _look_at_deletions(self) -> None:
        failed: list[Stated] = []
        now = _now()
        for address, (since, _) in tuple(self._deleting.items()):
            operation = await self.operation(address)
            is_late = now >= since + OPERATION_SECONDS_MAX
            if operation is None or is_late or operation.is_done:
                del self._deleting[address]
                failed += operation.errors if operation is not None else ()
        error = WORDS.error_of(failed) if failed else None
        if error is not None and not any("PREEMPTED" in each.code.upper() for each in failed):
            raise error  # one that another operation ended is sent again

    async def _delete(self, ids: Sequence[str]) -> None:
        try:
            await self._send_deletion(ids)
        except RefusedByProvider as error:
            # One that is gone already, or being deleted, fails the whole call.
            listed, is_complete = await self.machines()
            if not is_complete:
                raise CloudError(str(error)) from error
            there = {id_ for id_, each in listed.items() if each.provisioning != "Deleting"}
            left = [id_ for id_ in ids if id_ in there and not self.is_reused(id_)]
            if len(left) == len(ids):
                raise
            if left:
                await self._delete(left)

    async def _send_deletion(self, ids: Sequence[str]) -> None:
        place = self.place

        def delete(client: Any) -> str:
            return begun(
                client.virtual_machine_scale_sets.begin_delete_instances(
                    place.resource_group, place.scale_set, {"instanceIds": list(ids)},
                    polling=False, cls=headers_of,
                )
            )  # fmt: skip

        for id_ in ids:
            if id_ in self._vm_ids:
                self._deleted.setdefault(id_, self._vm_ids[id_])
        while len(self._deleted) > _IDS_KEPT_MAX:
            del self._deleted[next(iter(self._deleted))]
        address = await self._call(Bucket.DELETE, delete)
        if address:
            self._deleting[address] = (_now(), frozenset(ids))

    async def begin_maintenance(self, id_: str) -> None:
        """Begin the planned maintenance of a machine; CloudError."""
        place = self.place

        def perform(client: Any) -> str:
            return begun(
                client.virtual_machine_scale_set_vms.begin_perform_maintenance(
                    place.resource_group, place.scale_set, id_, polling=False, cls=headers_of
                )
            )  # fmt: skip

        await self._call(Bucket.UPDATE, perform)

    async def _call(self, bucket: Bucket, question: Question) -> Any:
        return await self.azure.call(self.place, bucket, question)

    def _not_there(self) -> RefusedByProvider:
        place = self.place
        where = f"resource group {place.resource_group!r} of subscription {place.subscription}"
        return NotThere(f"Azure: there is no scale set {place.scale_set!r} in {where}")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _model(found: Any, *, is_one_zone: bool) -> ScaleSetModel:
    properties, sku = found.get("properties") or {}, found.get("sku") or {}
    zones, etag = found.get("zones") or [], str(found.get("etag") or "")
    return ScaleSetModel(
        etag=etag,
        capacity=int(sku.get("capacity") or 0),
        sku={key: sku[key] for key in ("name", "tier") if sku.get(key)},
        tags={str(key): str(value) for key, value in (found.get("tags") or {}).items()},
        location=str(found.get("location") or ""),
        is_busy=properties.get("provisioningState") in _BUSY,
        problems=tuple(_problems(properties, zones if is_one_zone else [], etag)),
    )


def _problems(properties: Mapping[str, Any], zones: Sequence[str], etag: str) -> list[str]:
    update = "set it with `az vmss update --set"
    mode = (properties.get("upgradePolicy") or {}).get("mode")
    repairs = properties.get("automaticRepairsPolicy") or {}
    out: list[str] = []
    if properties.get("orchestrationMode") not in (None, "Uniform"):
        out.append("its orchestration mode is not Uniform: make it with that mode")
    if properties.get("overprovision") is not False:
        out.append(f"it makes more machines than it is asked for: {update} overprovision=false`")
    if mode != "Manual":
        out.append(f"its upgrade policy is {mode}: {update} upgradePolicy.mode=Manual`")
    if repairs.get("enabled"):
        out.append(f"it repairs machines: {update} automaticRepairsPolicy.enabled=false`")
    if len(zones) > 1:
        out.append(f"it spans the zones {', '.join(zones)}: make one scale set for each domain")
    if not etag:
        out.append("Azure gave no ETag for it, without which a launch could be sent twice")
    return out


def _machine(found: Any) -> ScaleSetMachine:
    properties = found.get("properties") or {}
    zones: Sequence[str] = found.get("zones") or ("",)
    view = properties.get("instanceView") or {}
    statuses = view.get("statuses") or []
    ahead = view.get("maintenanceRedeployStatus") or {}
    power, errors = "", list[Stated]()
    for each in statuses:
        kind, _, rest = str(each.get("code") or "").partition("/")
        state, _, code = rest.partition("/")
        if kind == "PowerState":
            power = state.lower()
        elif kind == "ProvisioningState" and state.lower() == "failed" and code:
            errors.append(Stated(code, str(each.get("message") or "")))
    return ScaleSetMachine(
        id=str(found.get("instanceId") or ""),
        vm_id=str(properties.get("vmId") or ""),
        provisioning=str(properties.get("provisioningState") or ""),
        power=power,
        zone=str(zones[0]),
        errors=tuple(errors),
        maintenance=_maintenance(ahead),
        may_begin=ahead.get("isCustomerInitiatedMaintenanceAllowed") is True,
    )


def _maintenance(status: Mapping[str, Any]) -> str:
    """Return the window in which Azure itself redeploys the machine; "" without one."""
    times = (status.get(f"maintenanceWindow{which}Time") for which in ("Start", "End"))
    try:
        start, end = (datetime.fromisoformat(str(at)).timestamp() for at in times)
    except ValueError:
        return ""
    return window_text(start, end)
