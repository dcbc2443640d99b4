"""One container of a local pod, as it is followed from start to start."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.kubernetes.core import Container
from fairlead.embedded.local.process import Run
from fairlead.embedded.virtual.status import ContainerNow, ContainerStateNow, Terminated


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
