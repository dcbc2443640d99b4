"""Decides whether the agent does what it is asked for (pure).

The request comes from the controllers, by a collector that the agent trusts little. So the agent
asks the machine itself: does work run here, does a process hold the GPU, how often was it done
within a day? Whoever writes requests can then restart a machine on which nothing runs, a few times
a day, and no other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Self

from fairlead.api.cluster.node_report import Action, AgentAnswer
from fairlead.api.values.sections import DAY
from fairlead.api.values.times import parse_time
from fairlead.model.health.faults import Moment
from fairlead.node.repairs.machine import RepairFacts
from fairlead.node.repairs.request import RepairRequest
from fairlead.node.reports.state import KeptRepair
from fairlead.node.settings import RepairSettings

_SHOWN_MAX = 3


class RepairRefusal(Enum):
    """Why a request is not carried out.

    `answer`: Refused where another action may help, Forbidden where a person is needed.
    """

    _value_: str
    answer: AgentAnswer

    def __new__(cls, value: str, answer: AgentAnswer) -> Self:
        """Make a member."""
        refusal = object.__new__(cls)
        refusal._value_, refusal.answer = value, answer
        return refusal

    EXPIRED = "the request has expired", AgentAnswer.FORBIDDEN
    OTHER_BOOT = "the request is of another boot or another machine", AgentAnswer.FORBIDDEN
    RESETS_OFF = "repairs.resets is off", AgentAnswer.REFUSED
    REBOOTS_OFF = "repairs.reboots is off", AgentAnswer.FORBIDDEN
    NO_ACTION = "no agent does that", AgentAnswer.FORBIDDEN
    PAST_UNKNOWN = "what was done within a day is not known", AgentAnswer.FORBIDDEN
    SPENT = "it was done as often as the settings allow in a day", AgentAnswer.FORBIDDEN
    UNSEEN = "the pods of the node cannot be read", AgentAnswer.FORBIDDEN
    WORK_RUNS = "pods run here", AgentAnswer.FORBIDDEN
    NO_GPU = "no such GPU is here", AgentAnswer.REFUSED
    HOLDERS_UNSEEN = "the processes that hold the GPU cannot be read", AgentAnswer.REFUSED
    GPU_HELD = "processes hold the GPU", AgentAnswer.REFUSED


def ruling_on(
    request: RepairRequest, facts: RepairFacts, kept: Iterable[KeptRepair],
    settings: RepairSettings, *, now: Moment, boot_id: str,
) -> tuple[RepairRefusal, str] | None:  # fmt: skip
    """Return why a request is refused, and what was seen of it; None: it is carried out."""
    if (found := _of_request(request, settings, now=now, boot_id=boot_id)) is not None:
        return found
    if (found := _of_past(request, kept, settings, now.time)) is not None:
        return found
    if facts.pods is None:
        return RepairRefusal.UNSEEN, facts.pods_why
    if facts.pods:
        return RepairRefusal.WORK_RUNS, _shown(facts.pods)
    return _of_gpus(request, facts) if request.action is Action.RESET_GPU else None


def _of_request(
    request: RepairRequest, settings: RepairSettings, *, now: Moment, boot_id: str
) -> tuple[RepairRefusal, str] | None:
    match request.action:
        case Action.RESET_GPU if not settings.resets:
            return RepairRefusal.RESETS_OFF, request.action.value
        case Action.REBOOT if not settings.reboots:
            return RepairRefusal.REBOOTS_OFF, request.action.value
        case Action.RESET_GPU | Action.REBOOT:
            pass
        case _:
            return RepairRefusal.NO_ACTION, request.action.value
    if request.boot_id != boot_id:
        return RepairRefusal.OTHER_BOOT, request.boot_id
    if now.time >= parse_time(request.expires_at):
        return RepairRefusal.EXPIRED, request.expires_at
    return None


def _of_past(
    request: RepairRequest, kept: Iterable[KeptRepair], settings: RepairSettings, now: float
) -> tuple[RepairRefusal, str] | None:
    """Return that the limit of a day is reached. What seems to be of the future counts."""
    recent = [each for each in kept if each.at > now - DAY and each.counts]
    if any(each.action is Action.NONE for each in recent):
        return RepairRefusal.PAST_UNKNOWN, "the agent's state was lost"
    most = settings.resets_per_day_max
    if request.action is Action.REBOOT:
        most = settings.reboots_per_day_max
    done = sum(each.action is request.action for each in recent)
    return (RepairRefusal.SPENT, f"{done} of {most}") if done >= most else None


def _of_gpus(request: RepairRequest, facts: RepairFacts) -> tuple[RepairRefusal, str] | None:
    if not facts.gpus:
        return RepairRefusal.NO_GPU, _shown(request.components)
    if facts.holders is None:
        return RepairRefusal.HOLDERS_UNSEEN, facts.holders_why
    return (RepairRefusal.GPU_HELD, _shown(facts.holders)) if facts.holders else None


def _shown(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more
