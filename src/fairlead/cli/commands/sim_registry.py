"""`sim registry`: how long one image takes to reach all nodes, with and without peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from fairlead.api.values.egress import egress_bits
from fairlead.api.values.quantity import QuantityError
from fairlead.api.values.quantity import parse as quantity
from fairlead.cli.connection.common import Common, Format, common, dump
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.images.outlook import size_text
from fairlead.decide.images.policy import RATE_SECONDS, ImagesPolicy
from fairlead.decide.words import duration
from fairlead.input.errors import Code, fail
from fairlead.sim.registry import PeerSharing, PullLoad, estimated_seconds, simulated

_POLICY = ImagesPolicy()
_PIECE_BYTES = 4 << 20
#: More transfers take minutes to simulate.
_TRANSFERS_MAX = 20_000
_NODES_MAX, _LAYERS_MAX = 20_000, 500
_BYTES_MAX = 10**15

COLUMNS = (
    Column("HOW"),
    Column("LAST NODE", Align.RIGHT),
    Column("SIMULATED", Align.RIGHT),
    Column("FROM THE REGISTRY", Align.RIGHT),
)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to pull: what the formula says, and the simulation; None where it is too large."""

    how: str
    seconds: float
    simulated: float | None
    registry_bytes: float

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return it for programs."""
        seen = None if self.simulated is None else round(self.simulated, 1)
        return {"how": self.how, "seconds": round(self.seconds, 1), "simulatedSeconds": seen,
                "registryBytes": round(self.registry_bytes)}  # fmt: skip

    @property
    def row(self) -> Row:
        """Return the cells of COLUMNS."""
        seen = "-" if self.simulated is None else duration(self.simulated)
        return self.how, duration(self.seconds), seen, size_text(self.registry_bytes)


@click.command(
    epilog="""Examples:

    \b
      fairlead sim registry                                  17 GB onto 1,000 nodes, 25 Gbit/s
      fairlead sim registry --nodes 300 --image 9G --registry 10G
      fairlead sim registry --receive 100G --send 25G --at-a-time 64
    """
)
@click.option("--nodes", type=click.IntRange(1, _NODES_MAX), metavar="N", default=1000,
              show_default=True, help="Nodes that lack the image.")  # fmt: skip
@click.option("--image", metavar="BYTES", default="17G", show_default=True,
              help="Size of the image, compressed.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1, _LAYERS_MAX), metavar="N", default=12,
              show_default=True, help="Its layers, of one size.")  # fmt: skip
@click.option("--registry", metavar="RATE", default="25G", show_default=True,
              help="What the registry sends, in bits a second.")  # fmt: skip
@click.option("--receive", metavar="RATE", default="25G", show_default=True,
              help="What a node receives and unpacks.")  # fmt: skip
@click.option("--send", metavar="RATE", default="10G", show_default=True,
              help="What a node may send to others.")  # fmt: skip
@click.option("--at-a-time", type=click.IntRange(1, _NODES_MAX), metavar="N",
              default=_POLICY.pulls_per_registry_max, show_default=True,
              help="Nodes that pull at a time: images.pullsPerRegistryMax.")  # fmt: skip
@common(cluster=False)
def registry(
    common_: Common, *, nodes: int, image: str, layers: int, registry: str, receive: str,
    send: str, at_a_time: int,
) -> None:  # fmt: skip
    """Say how long one image takes to reach all nodes, with and without peers.

    LAST NODE is by formula, SIMULATED by a simulation of all transfers; "-" where those are too
    many. All nodes at once is a job that starts, or a node pool that grows; the others are pulls
    before work. Rates are as in 25G, bits a second.
    """
    size = _bytes(image)
    sent, received, given = (
        _rate(text, flag) / 8
        for text, flag in ((registry, "--registry"), (receive, "--receive"), (send, "--send"))
    )

    def load(sharing: PeerSharing, units: int, most: int, *, proves: bool = False) -> PullLoad:
        return PullLoad(sharing, nodes, size, units, sent, received, given, most, proves)

    pieces = max(1, round(size / _PIECE_BYTES))
    ways = [
        _way("no peers, all nodes at once", load(PeerSharing.NONE, layers, nodes)),
        _way(f"no peers, {at_a_time:,} at a time", load(PeerSharing.NONE, layers, at_a_time)),
        _way("peers share layers, all at once", load(PeerSharing.LAYERS, layers, nodes)),
        _way(
            f"peers share layers, one first, then {at_a_time:,} at a time",
            load(PeerSharing.LAYERS, layers, at_a_time, proves=True),
        ),
        _way("peers share pieces of 4 MiB, all at once", load(PeerSharing.PIECES, pieces, nodes)),
    ]
    _show(common_, ways, nodes)


def _show(common_: Common, ways: Sequence[_Way], nodes: int) -> None:
    if common_.format in (Format.JSON, Format.YAML):
        common_.emit(dump([way.facts for way in ways], common_.format))
        return
    common_.table(COLUMNS, [way.row for way in ways], empty="")
    starts = _POLICY.starts_per_registry_max
    least = nodes / starts * RATE_SECONDS
    common_.note(
        f"note: pulls before work begin at {starts:,} a minute at most "
        f"(images.startsPerRegistryMax): {nodes:,} nodes take {duration(least)} at least"
    )


def _way(how: str, load: PullLoad) -> _Way:
    seen = simulated(load) if load.nodes * load.units <= _TRANSFERS_MAX else None
    is_all = load.sharing is PeerSharing.NONE or (
        load.sharing is PeerSharing.LAYERS and not load.proves
    )
    sent = load.image_bytes * (load.nodes if is_all else 1)
    return _Way(
        how, estimated_seconds(load), seen.last_seconds if seen else None,
        seen.registry_bytes if seen else sent,
    )  # fmt: skip


def _bytes(text: str) -> float:
    try:
        found = float(quantity(text))
    except QuantityError as error:
        raise fail(Code.BAD_VALUE, f"--image {text[:40]!r} is no size such as 17G or 16Gi",
                   help=("bytes with a suffix of Kubernetes",)) from error  # fmt: skip
    if not 1 <= found <= _BYTES_MAX:
        raise fail(Code.BAD_VALUE, f"--image {text[:40]} must be from 1 to 1P bytes",
                   help=("17G is the size of a large image",))  # fmt: skip
    return found


def _rate(text: str, flag: str) -> int:
    try:
        return egress_bits(text)
    except ValueError as error:
        raise fail(Code.BAD_VALUE, f"{flag}: {error}",
                   help=("25G is 25 gigabits a second",)) from error  # fmt: skip
