"""One container of a local pod, as it is followed from start to start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.api.kubernetes.core import Container
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.virtual.stages.status import (
    ContainerNow,
    ContainerStateNow,
    PodPhase,
    Terminated,
    Waiting,
)


@dataclass(slots=True, eq=False)
class ContainerTrack:
    """One container as it is followed."""

    spec: Container
    state: ContainerStateNow
    run: Run | None = None
    restarts: int = 0
    failures: int = 0
    last: Terminated | None = None

    def now(self, uid: str) -> ContainerNow:
        """Return it for the status."""
        return ContainerNow(
            self.spec.name,
            self.spec.image,
            self.state,
            self.restarts,
            self.last,
            f"local://{uid}/{self.spec.name}/{self.restarts}" if self.run else "",
        )


def tracks_of(containers: Iterable[Container]) -> list[ContainerTrack]:
    """Return containers that have not been started."""
    return [ContainerTrack(each, Waiting("ContainerCreating")) for each in containers]


def has_failed(track: ContainerTrack) -> bool:
    """True for a container that ended, and not well."""
    return isinstance(track.state, Terminated) and track.state.exit_code != 0


def final_phase(tracks: Iterable[ContainerTrack]) -> PodPhase:
    """Return how a pod ended: failed, where any container did, or never came to run."""
    is_bad = any(has_failed(each) or (each.run is None and each.last is None) for each in tracks)
    return PodPhase.FAILED if is_bad else PodPhase.SUCCEEDED
