"""What tests of a virtual machine find: drawn once from a seed and the name of the node.

good      figures of its shape, with the noise of good machines
slow      half of them
corrupt   the CPU computes wrong
hanging   the test never ends
flaky     every other pod leaves no result
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_suites import Better, MachineTest, Suite, suites
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import NODE_TEST
from fairlead.api.values.quantity import is_gpu
from fairlead.embedded.virtual.profile import HardwareSpec

#: Of the time that a suite may take, how much it takes.
_TIME_SHARE = 0.15
_NOISE, _SLOW = 0.01, 0.5
_TYPICAL = {"B/s": 1e10, "1/s": 1e3, "s": 1e-3}
_GPU_PREFIX = "gpu-"


class Quality(Enum):
    """Kinds of machines."""

    GOOD = "good"
    SLOW = "slow"
    CORRUPT = "corrupt"
    HANGING = "hanging"
    FLAKY = "flaky"


@dataclass(frozen=True, slots=True)
class EndedTestPod:
    """How a test pod ends: after so long, with this message; "": without one."""

    seconds: float
    message: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machines of a fleet."""

    spec: HardwareSpec

    def quality(self, node: str) -> Quality:
        """Return the kind of a machine."""
        spec, drawn = self.spec, self._rng(node).random()
        for quality, share in (
            (Quality.SLOW, spec.slow), (Quality.CORRUPT, spec.corrupt),
            (Quality.HANGING, spec.hanging), (Quality.FLAKY, spec.flaky),
        ):  # fmt: skip
            if drawn < share:
                return quality
            drawn -= share
        return Quality.GOOD

    def answer(self, pod: Pod, node: str) -> EndedTestPod | None:
        """Return how a test pod on a node ends; None: it never does."""
        suite = suites().get(pod.metadata.labels[NODE_TEST])
        quality = self.quality(node)
        if quality is Quality.HANGING:
            return None
        if suite is None:
            return EndedTestPod(1.0, "")
        seconds = suite.seconds * _TIME_SHARE
        if quality is Quality.FLAKY and self._rng(f"{node}/{pod.metadata.uid}").random() < 0.5:
            return EndedTestPod(seconds, "")
        measured = tuple(self._measured(suite, pod, node, quality))
        result = SuiteResult(suite.name, measured, versions={"kernel": "simulated"})
        return EndedTestPod(seconds, encode_result(result).decode())

    def _rng(self, of: str) -> random.Random:
        return random.Random(f"hardware/{self.spec.seed}/{of}")  # noqa: S311 # a model, no secret

    def _measured(
        self, suite: Suite, pod: Pod, node: str, quality: Quality
    ) -> Iterator[MachineFinding]:
        has_gpus = any(
            is_gpu(name) for each in pod.spec.containers for name in each.resources.limits
        )
        rng = self._rng(f"{node}/figures")
        for test in suite.kinds():
            figures = tuple(self._figures(test, quality, rng))
            if test.name.startswith(_GPU_PREFIX) and not has_gpus:
                yield MachineFinding(test.name, MachineOutcome.SKIPPED, "it has no GPU")
            elif test.name == "cpu" and quality is Quality.CORRUPT:
                yield MachineFinding(
                    test.name, MachineOutcome.FAILED, "wrong results on 1 CPU", figures=figures
                )
            else:
                yield MachineFinding(test.name, MachineOutcome.PASSED, figures=figures)

    @staticmethod
    def _figures(test: MachineTest, quality: Quality, rng: random.Random) -> Iterator[Figure]:
        for kind in test.figure:
            value = _TYPICAL.get(kind.unit, 1.0) * (1.0 + rng.uniform(-_NOISE, _NOISE))
            if quality is Quality.SLOW:
                value *= {Better.HIGHER: _SLOW, Better.LOWER: 1 / _SLOW}.get(kind.better, 1.0)
            yield Figure(kind.name, float(f"{value:.6g}"))
