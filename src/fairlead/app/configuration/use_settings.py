"""The settings of what members use: how it is sampled, and what follows from GPUs without use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.values.sections import DAY, Section, about, within
from fairlead.decide.use.idle import IdleMode, IdlePolicy
from fairlead.decide.use.use_samples import UsePolicy

_LISTED_MAX = 256
_IDLE = IdlePolicy()


class IdleSettings(Section, frozen=True):
    """What is done about jobs that hold GPUs and use almost nothing."""

    mode: Annotated[
        IdleMode,
        about("None; Shadow: Events say what would be done; Enforce: owners are warned, jobs end."),
    ] = _IDLE.mode
    first_warning_seconds: Annotated[
        int, within(12, DAY, "The owner of a job that was idle for so long is warned.")
    ] = _IDLE.first_warning_seconds
    second_warning_seconds: Annotated[int, within(13, 2 * DAY, "And warned again.")] = (
        _IDLE.second_warning_seconds
    )
    end_seconds: Annotated[
        int,
        within(14, 7 * DAY, "A job that was idle for so long ends, where its nodes count what it "
                             "uses."),
    ] = _IDLE.end_seconds  # fmt: skip
    gpu_percent_max: Annotated[
        int,
        within(0, 50, "A job is idle whose GPUs compute for at most so much of 5 minutes."),
    ] = _IDLE.gpu_percent_max
    gpus_min: Annotated[int, within(0, 1_000, "Only jobs with so many GPUs are looked at.")] = (
        _IDLE.gpus_min
    )
    ends_per_hour_max: Annotated[int, within(1, 10_000, "Jobs that end within an hour.")] = (
        _IDLE.ends_per_hour_max
    )
    except_users: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...],
        Meta(max_length=_LISTED_MAX, description="Users whose jobs are left alone."),
    ] = _IDLE.except_users
    except_teams: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(max_length=_LISTED_MAX, description="Teams whose jobs are left alone."),
    ] = _IDLE.except_teams
    except_names: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=317)], ...],
        Meta(max_length=_LISTED_MAX, description="Names of jobs that are left alone, or "
             "NAMESPACE/NAME, with * for any text. Users choose the names of their jobs."),
    ] = _IDLE.except_names  # fmt: skip

    def policy(self) -> IdlePolicy:
        """Return what is done about them."""
        return IdlePolicy(**msgspec.structs.asdict(self))


class UseSettings(Section, frozen=True):
    """What members use, where their nodes do not say it."""

    sample_seconds: Annotated[
        int,
        within(0, 100, "Ask metrics.k8s.io for members that run this often, and the Prometheus of "
                       "doctor.prometheus, where there is one, for their GPUs; 0: never."),
    ] = 60  # fmt: skip

    def policy(self) -> UsePolicy:
        """Return how members are sampled."""
        return UsePolicy(self.sample_seconds)


def conflicts_of_idle(settings: IdleSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that do not go together."""
    first, second = settings.first_warning_seconds, settings.second_warning_seconds
    if second <= first:
        yield "idle.secondWarningSeconds", f"{second} must be after the first warning, at {first}"
    if settings.end_seconds <= second:
        why = f"must be after the second warning, at {second}"
        yield "idle.endSeconds", f"{settings.end_seconds} {why}"
