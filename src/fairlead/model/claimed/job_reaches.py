"""What a job's claims for volumes and for devices say together of where its members may go."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.model.claimed.device_asks import DeviceNeeds, UnusableDevices
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.claimed.job_claims import Claims, claims_of
from fairlead.model.claimed.volumes import Reaches, Turn, UnusableClaim, VolumeTable
from fairlead.model.gang.role_reach import RoleReach

#: Why a job cannot have a claim that it names.
Unusable: TypeAlias = UnusableClaim | UnusableDevices
_Needs: TypeAlias = DeviceNeeds | UnusableDevices


def use_claims(
    volumes: VolumeTable, devices: DeviceTable, job: Job, claims: Claims, *, turn: Turn
) -> Reaches | Unusable:
    """Note which claims a job uses until it has ended, and return what they say of each role."""
    found = volumes.use(job, claims.of_volumes, turn)
    return _together(found, devices.use(job, claims.devices, turn))


def judge_claims(
    volumes: VolumeTable, devices: DeviceTable, job: Job, claims: Claims
) -> Reaches | Unusable:
    """Return what the claims of a job say of each role, as it was found before."""
    return _together(volumes.judge(job, claims.of_volumes), devices.judge(job, claims.devices))


def read_claims(volumes: VolumeTable, devices: DeviceTable, job: Job) -> Reaches | Unusable:
    """Return what the claims of a job that need not be known say of each role."""
    claims = claims_of(job, devices.resources)
    found = volumes.read(job.metadata.namespace, claims.of_volumes)
    return _together(found, devices.read(job, claims.devices) if claims.devices else ())


def _together(found: Reaches | UnusableClaim, needs: _Needs) -> Reaches | Unusable:
    if not isinstance(needs, tuple):
        return needs
    if not needs or not isinstance(found, tuple):
        return found
    found = found or tuple(RoleReach() for _ in needs)
    return tuple(
        replace(
            near,
            shared=tuple(dict.fromkeys((*near.shared, *e.reach))),
            devices=near.devices + e.request,
            quota=e.quota,
            domains=near.domains + e.domains,
        )
        for near, e in zip(found, needs, strict=True)
    )
