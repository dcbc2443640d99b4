"""Why a job has no priority, no team, no volume or no device, as a verdict."""

from __future__ import annotations

from typing import assert_never

from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.priorities import MissingClass, ReservedClass, Unresolved
from fairlead.model.asks.teams import AmbiguousTeam, ForeignTeam, UnresolvedTeam
from fairlead.model.claimed.device_asks import (
    MissingDeviceClaim,
    MissingDeviceClass,
    UnallocatedClaim,
    UnmatchedDevices,
    UnsupportedClaim,
    UnusableDevices,
)
from fairlead.model.claimed.job_reaches import Unusable
from fairlead.model.claimed.volumes import (
    ClaimInUse,
    CrowdedClaim,
    DeletedClaim,
    LostClaim,
    MissingClaim,
    UnboundClaim,
    VolumelessClaim,
)

_TEAMS_NAMED_MAX = 10


def unresolved_verdict(unresolved: Unresolved | UnresolvedTeam | Unusable) -> Verdict:
    """Return the verdict on a job whose PriorityClass, team or claim cannot be used."""
    match unresolved:
        case MissingClass(name):
            return Verdict(Reason.PRIORITY_CLASS_MISSING, {"priority_class": name})
        case ReservedClass(name):
            return Verdict(Reason.PRIORITY_CLASS_RESERVED, {"priority_class": name})
        case ForeignTeam(name, teams):
            return Verdict(Reason.TEAM_NOT_OPEN, {"team": name, "open": listed(teams)})
        case AmbiguousTeam(teams):
            return Verdict(Reason.TEAM_AMBIGUOUS, {"open": listed(teams)})
        case MissingClaim(claim):
            return Verdict(Reason.CLAIM_MISSING, {"claim": claim})
        case DeletedClaim(claim):
            return Verdict(Reason.CLAIM_DELETED, {"claim": claim})
        case LostClaim(claim, volume):
            return Verdict(Reason.CLAIM_LOST, {"claim": claim, "volume": volume})
        case UnboundClaim(claim, storage_class):
            facts = {"claim": claim, "storage_class": storage_class or "none"}
            return Verdict(Reason.CLAIM_UNBOUND, facts)
        case VolumelessClaim(claim, storage_class):
            facts = {"claim": claim, "storage_class": storage_class}
            return Verdict(Reason.NO_VOLUME, facts)
        case CrowdedClaim(claim, members):
            return Verdict(Reason.CLAIM_FOR_ONE_POD, {"claim": claim, "members": members})
        case ClaimInUse(claim, user):
            return Verdict(Reason.CLAIM_IN_USE, {"claim": claim, "user": user})
        case _:
            return _device_verdict(unresolved)


def _device_verdict(unusable: UnusableDevices) -> Verdict:
    match unusable:
        case MissingDeviceClaim(claim):
            return Verdict(Reason.DEVICE_CLAIM_MISSING, {"claim": claim})
        case MissingDeviceClass(claim, device_class):
            facts = {"claim": claim, "device_class": device_class}
            return Verdict(Reason.DEVICE_CLASS_MISSING, facts)
        case UnallocatedClaim(claim, first):
            words = f"{claim}, which job {first} gets first," if first else claim
            return Verdict(Reason.DEVICE_CLAIM_SHARED, {"claim": words})
        case UnsupportedClaim(claim, path, why):
            facts = {"claim": claim, "path": path, "why": why}
            return Verdict(Reason.DEVICE_CLAIM_UNSUPPORTED, facts)
        case UnmatchedDevices(claim, device_class):
            facts = {"claim": claim, "device_class": device_class}
            return Verdict(Reason.DEVICES_UNMATCHED, facts)
        case _:
            assert_never(unusable)


def listed(teams: tuple[str, ...]) -> str:
    """Return the teams that a namespace belongs to, in words."""
    shown = ", ".join(teams[:_TEAMS_NAMED_MAX])
    more = len(teams) - _TEAMS_NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "none"
