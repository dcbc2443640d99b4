"""What tests of a virtual machine find: drawn from a seed and the name of the node, until a
simulation says that the machine is of another kind by now.

good      figures of its shape, with the noise of good machines
slow      half of them, and twice as long for a step of a program
corrupt   the CPU computes wrong
hanging   the test never ends
flaky     every other pod leaves no result
dead      its GPUs do not answer
link      it has a slow network interface, and is good alone
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    PairMeasure,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_suites import (
    OWN_TEST,
    Better,
    MachineTest,
    Suite,
    gang_suite,
    pair_suite,
    suite_of,
)
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import NODE_TEST
from fairlead.api.values.quantity import is_gpu
from fairlead.embedded.virtual.profile import HardwareSpec

#: Of the time that a suite may take, how much it takes.
_TIME_SHARE = 0.15
_NOISE, _SLOW = 0.01, 0.5
_SLOW_LINK = 0.2
#: How long a pair takes.
_PAIR_SECONDS = 3.0
_TYPICAL = {"B/s": 1e10, "1/s": 1e3, "s": 1e-3}
_GPU_PREFIX = "gpu-"


class Quality(Enum):
    """Kinds of machines."""

    GOOD = "good"
    SLOW = "slow"
    CORRUPT = "corrupt"
    HANGING = "hanging"
    FLAKY = "flaky"
    DEAD = "dead"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class EndedTestPod:
    """How a test pod ends: after so long, with this message; "": without one."""

    seconds: float
    message: str


def _words(pod: Pod, flag: str) -> Iterator[str]:
    """Yield what the command of a test pod has after a flag."""
    words = pod.spec.containers[0].command if pod.spec.containers else ()
    return (word for before, word in pairwise(words) if before == flag)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machines of a fleet."""

    spec: HardwareSpec
    #: Machines that are of another kind than was drawn.
    changed: dict[str, Quality] = field(default_factory=dict[str, Quality])
    #: Two nodes each between which data is slow, in the order of their names.
    slow_links: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def quality(self, node: str) -> Quality:
        """Return the kind of a machine."""
        if node in self.changed:
            return self.changed[node]
        spec, drawn = self.spec, self._rng(node).random()
        for quality, share in (
            (Quality.SLOW, spec.slow), (Quality.CORRUPT, spec.corrupt),
            (Quality.HANGING, spec.hanging), (Quality.FLAKY, spec.flaky), (Quality.DEAD, spec.dead),
            (Quality.LINK, spec.link),
        ):  # fmt: skip
            if drawn < share:
                return quality
            drawn -= share
        return Quality.GOOD

    def own_work(self, node: str, seconds: float) -> float:
        """Return how long a machine works for what takes a good one so many seconds."""
        share = _SLOW if self.quality(node) is Quality.SLOW else 1.0
        return seconds / share * (1.0 + self._rng(f"{node}/work").uniform(-_NOISE, _NOISE))

    def answer(self, pod: Pod, node: str) -> EndedTestPod | None:
        """Return how a test pod on a node ends; None: it never does."""
        own = (msgspec.json.decode(each, type=MachineTest) for each in _words(pod, OWN_TEST))
        suite = suite_of(pod.metadata.labels[NODE_TEST], tuple(_words(pod, "--retest")), tuple(own))
        quality = self.quality(node)
        if quality is Quality.HANGING:
            return None
        if suite is None:
            return EndedTestPod(1.0, "")
        seconds = suite.seconds * _TIME_SHARE
        if self._is_out(pod, node):
            return EndedTestPod(seconds, "")
        measured = tuple(self._measured(suite, pod, node, quality=quality))
        result = SuiteResult(suite.name, measured, versions={"kernel": "simulated"})
        return EndedTestPod(seconds, encode_result(result).decode())

    def pair(self, pod: Pod, node: str, other: str) -> EndedTestPod | None:
        """Return how the pod of a pair ends on a node; None: it never does. `other`: "" is gone."""
        if self.hangs(node):
            return None
        if self._is_out(pod, node):
            return EndedTestPod(_PAIR_SECONDS, "")
        measure = PairMeasure(0, error="the other side did not answer in time")
        if other and not self.hangs(other):
            measure = PairMeasure(0, self._rate(node, other), 5e-5)
        result = SuiteResult(pair_suite().name, (), pairs=(measure,))
        return EndedTestPod(_PAIR_SECONDS, encode_result(result).decode())

    def hangs(self, node: str) -> bool:
        """True for a machine whose tests never end."""
        return self.quality(node) is Quality.HANGING

    def in_gang(self, pod: Pod, node: str) -> SuiteResult | None:
        """Return what a member of a gang finds on its own node; None: nothing."""
        quality = self.quality(node)
        if quality is Quality.HANGING or self._is_out(pod, node):
            return None
        suite = gang_suite()
        return SuiteResult(suite.name, tuple(self._measured(suite, pod, node, quality=quality)))

    def met(
        self, results: Mapping[int, SuiteResult], pairs: Iterable[tuple[int, int]],
        nodes: Sequence[str],
    ) -> dict[int, SuiteResult]:  # fmt: skip
        """Return the results with what pairs of ranks measure between them."""
        out = dict(results)
        for client, server in pairs:
            if client not in out or server not in out:
                continue
            rate = self._rate(nodes[client], nodes[server])
            for rank, peer in ((client, server), (server, client)):
                measure = PairMeasure(peer, rate, 5e-5)
                out[rank] = replace(out[rank], pairs=(*out[rank].pairs, measure))
        return out

    def _rate(self, a: str, b: str) -> float:
        is_slow = {Quality.SLOW, Quality.LINK} & {self.quality(a), self.quality(b)}
        is_slow_link = (min(a, b), max(a, b)) in self.slow_links
        share = _SLOW_LINK if is_slow or is_slow_link else 1.0
        drawn = self._rng(f"{a}/{b}").uniform(-_NOISE, _NOISE)
        return float(f"{_TYPICAL['B/s'] * share * (1.0 + drawn):.4g}")

    def _is_out(self, pod: Pod, node: str) -> bool:
        """True for every other pod on a machine that is flaky."""
        is_flaky = self.quality(node) is Quality.FLAKY
        return is_flaky and self._rng(f"{node}/{pod.metadata.uid}").random() < 0.5

    def _rng(self, of: str) -> random.Random:
        return random.Random(f"hardware/{self.spec.seed}/{of}")  # noqa: S311 # a model, no secret

    def _measured(
        self, suite: Suite, pod: Pod, node: str, *, quality: Quality
    ) -> Iterator[MachineFinding]:
        has_gpus = any(
            is_gpu(name) for each in pod.spec.containers for name in each.resources.limits
        )
        rng = self._rng(f"{node}/figures")
        for test in suite.kinds():
            figures = tuple(self._figures(test, quality, rng))
            if test.name.startswith(_GPU_PREFIX) and not has_gpus:
                yield MachineFinding(test.name, MachineOutcome.SKIPPED, "it has no GPU")
            elif test.name.startswith(_GPU_PREFIX) and quality is Quality.DEAD:
                yield MachineFinding(test.name, MachineOutcome.FAILED, "no GPU answers")
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
