"""Who pulls which images, and how fast, as a table, as CSV and as plain data (pure).

All of it is of the pulls that kubelets have reported within the hour that events last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Any

from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.images.outlook import size_text
from fairlead.decide.images.pulled import ImagePull, PullCost
from fairlead.decide.words import duration
from fairlead.model.asks.image_pulls import PULL_PREFIX

_BEFORE_WORK, _OTHERS = "images before work", "other pods"


class PullBy(Enum):
    """What pulls are added up by; `title` of the first column."""

    JOB = "job"
    TEAM = "team"
    IMAGE = "image"
    REGISTRY = "registry"
    NODE = "node"


BY_NAMES = tuple(by.value for by in PullBy)
FIELDS = (
    "of", "pulls", "bytes", "againBytes", "bytesPerSecond", "asked", "askedSeconds",
)  # fmt: skip


@dataclass(slots=True)
class PullLine:
    """The pulls of one job, team, image, registry or node. `size_bytes` are all that were
    transferred, at most; `again_bytes` those of them that the node had had. `asked` starts got
    nothing for their question to the registry, and waited so long for it.
    """

    of: str
    pulls: int = 0
    size_bytes: int = 0
    again_bytes: int = 0
    rates: list[float] = field(default_factory=list[float])
    asked: int = 0
    asked_seconds: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """The median of its pulls that say a rate; 0 where none does."""
        return median(self.rates) if self.rates else 0.0

    def add(self, pull: ImagePull) -> None:
        """Count a pull."""
        if pull.cost is PullCost.ASKED:
            self.asked += 1
            self.asked_seconds += pull.seconds
            return
        self.pulls += 1
        self.size_bytes += pull.size_bytes
        self.again_bytes += pull.size_bytes if pull.cost is PullCost.AGAIN else 0
        if (rate := pull.bytes_per_second) is not None:
            self.rates.append(rate)


class PullOwners:
    """Which job and team a pod is of, by its name: the pod may be gone."""

    def __init__(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """`jobs` are as they are stored."""
        self._teams: dict[tuple[str, str], str] = {}
        self._roles: dict[tuple[str, str], frozenset[str]] = {}
        for job in jobs:
            meta, spec = job.get("metadata", {}), job.get("spec", {})
            key = meta.get("namespace", ""), meta.get("name", "")
            placed = (job.get("status", {}).get("placement") or {}).get("team")
            self._teams[key] = placed or spec.get("team") or ""
            self._roles[key] = frozenset(role.get("name", "") for role in spec.get("roles", ()))

    def job_of(self, pull: ImagePull) -> tuple[str, str] | None:
        """Return the key of the job; None for another pod.

        A member is called JOB-ATTEMPT-ROLE-INDEX (`decide/attempts/seats.py`); names and roles may
        have hyphens.
        """
        words = pull.pod.split("-")
        for end in range(len(words) - 3, 0, -1):
            key = pull.namespace, "-".join(words[:end])
            is_member = words[end].isdecimal() and words[-1].isdecimal()
            if is_member and "-".join(words[end + 1 : -1]) in self._roles.get(key, ()):
                return key
        return None

    def name(self, pull: ImagePull, by: PullBy) -> str:
        """Return what a pull is added up by."""
        match by:
            case PullBy.IMAGE:
                return pull.image
            case PullBy.REGISTRY:
                return pull.registry
            case PullBy.NODE:
                return pull.node or "-"
            case PullBy.JOB | PullBy.TEAM:
                pass
        key = self.job_of(pull)
        others = _BEFORE_WORK if pull.pod.startswith(PULL_PREFIX) else _OTHERS
        if by is PullBy.TEAM:
            return others if key is None else self._teams[key] or "no team"
        return f"{pull.namespace}/{key[1]}" if key is not None else f"{pull.namespace}: {others}"


def lines_by(pulls: Iterable[ImagePull], owners: PullOwners, by: PullBy) -> list[PullLine]:
    """Return the lines, those of most bytes first, then those that asked for longest."""
    lines: dict[str, PullLine] = {}
    for pull in pulls:
        name = owners.name(pull, by)
        lines.setdefault(name, PullLine(name)).add(pull)
    return sorted(lines.values(), key=lambda each: (-each.size_bytes, -each.asked_seconds, each.of))


def columns(by: PullBy) -> tuple[Column, ...]:
    """Return the columns of `rows`."""
    titles = ("PULLS", "BYTES", "AGAIN", "RATE", "ASKED", "WAITED")
    return (Column(by.value.upper()), *(Column(title, Align.RIGHT) for title in titles))


def rows(lines: Iterable[PullLine]) -> list[Row]:
    """Return the cells of `columns`."""
    return [
        (
            line.of, f"{line.pulls:,}", size_text(line.size_bytes), size_text(line.again_bytes),
            _rate_text(line.bytes_per_second), f"{line.asked:,}",
            duration(line.asked_seconds) if line.asked else "-",
        )
        for line in lines
    ]  # fmt: skip


def _rate_text(rate: float) -> str:
    return f"{size_text(rate)}/s" if rate else "-"


def facts(line: PullLine) -> dict[str, Any]:
    """Return a line for programs."""
    return {
        "of": line.of, "pulls": line.pulls, "bytes": line.size_bytes,
        "againBytes": line.again_bytes, "bytesPerSecond": round(line.bytes_per_second),
        "asked": line.asked, "askedSeconds": round(line.asked_seconds, 3),
    }  # fmt: skip


def csv_text(lines: Iterable[PullLine]) -> str:
    """Return the lines as CSV with a header."""
    return as_csv(FIELDS, ([facts(line)[name] for name in FIELDS] for line in lines))


@dataclass(frozen=True, slots=True)
class PeerEffect:
    """Rates of pulls from a registry by nodes with a program that serves images to its peers, and
    by the other nodes; each is (nodes, pulls, median rate), None where no pull says a rate.
    """

    program: str
    registry: str
    with_: tuple[int, int, float] | None
    without: tuple[int, int, float] | None

    @property
    def words(self) -> str:
        """Return it as a sentence."""
        head = f"{self.program}, {self.registry}"
        if self.with_ is None:
            return f"{head}: no pull by a node with it says a rate yet"
        seen = f"{head}: {_seen(self.with_)} with it"
        if self.without is None:
            return f"{seen}; no node without it has pulled, so its effect is not known"
        times = self.with_[2] / self.without[2]
        return f"{seen}, {_seen(self.without)} without: {times:.2g} times the rate"


def _seen(found: tuple[int, int, float]) -> str:
    nodes, pulls, rate = found
    of = f"{pulls:,} pull{'s' * (pulls != 1)} by {nodes:,} node{'s' * (nodes != 1)}"
    return f"{_rate_text(rate)} ({of})"


def peer_effects(
    pulls: Sequence[ImagePull], peers: Mapping[str, frozenset[str]]
) -> Iterator[PeerEffect]:
    """Yield the effect of each program of `peers`, which are nodes by program, by registry."""
    for program, nodes in sorted(peers.items()):
        by_registry: dict[str, tuple[list[ImagePull], list[ImagePull]]] = defaultdict(
            lambda: ([], [])
        )
        for pull in pulls:
            if pull.bytes_per_second is not None:
                by_registry[pull.registry][pull.node not in nodes].append(pull)
        for registry, (ours, others) in sorted(by_registry.items()):
            yield PeerEffect(program, registry, _measured(ours), _measured(others))


def _measured(pulls: Sequence[ImagePull]) -> tuple[int, int, float] | None:
    rates = [rate for pull in pulls if (rate := pull.bytes_per_second) is not None]
    return (len({pull.node for pull in pulls}), len(pulls), median(rates)) if rates else None
