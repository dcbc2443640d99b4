"""Parts of the service `use`: what keeps the use of members, and what reads it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.gpu_use import PrometheusGpus
from fairlead.app.mirrors import SharedMirrors
from fairlead.controllers.records.idle import Measured
from fairlead.controllers.records.use import UseKeeper
from fairlead.controllers.records.use_samples import UseSampler
from fairlead.decide.use.idle import MemberLook
from fairlead.embedded.http.metrics import MeasuredUse
from fairlead.runtime.client import Client
from fairlead.runtime.kept.history import History


def looks_of(measured: Iterable[MeasuredUse]) -> Iterator[MemberLook]:
    """Yield what pods have used so far, of those whose nodes say it."""
    for each in measured:
        if each.so_far is not None and each.parts:
            at = max(part.at for part in each.parts.values())
            yield MemberLook((each.namespace, each.name), at, each.so_far)


def use_parts(
    policies: Policies, client: Client, history: History, *, context: ProcessContext,
    mirrors: SharedMirrors, measured: Measured | None,
) -> tuple[UseKeeper, Measured | None]:  # fmt: skip
    """Return what keeps the use of members, and what says how much those that run used so far:
    `measured`, else the sampler; None where nothing says it.
    """
    policy, doctor, sampler = policies.use, policies.doctor, None
    if policy.sample_seconds:
        gpus = PrometheusGpus(doctor.prometheus, Path(doctor.credentials_directory))
        sampler = UseSampler(
            client, mirrors.pods, mirrors.jobs, history, clock=context.clock,
            policy=policy, gpus=gpus if doctor.prometheus else None, log=context.log,
        )  # fmt: skip
    keeper = UseKeeper(
        history, mirrors.pods, mirrors.jobs, clock=context.clock,
        rng=context.streams("use"), sampler=sampler, log=context.log,
    )  # fmt: skip
    if measured is None and sampler is not None:
        measured = sampler.looks
    return keeper, measured
