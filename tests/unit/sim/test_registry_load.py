"""How long an image takes to reach all nodes: the formula beside a simulation of all transfers."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.app import run
from fairlead.sim.registry import PeerSharing, PullLoad, estimated_seconds, simulated

GBIT = 1e9 / 8
SIZE = 17e9
LINES = ((25, 25, 10), (10, 100, 25), (100, 10, 10), (5, 10, 10))


def load(
    sharing: PeerSharing, nodes: int, units: int, lines: tuple[int, int, int], **fields: object
) -> PullLoad:
    registry, receives, sends = (each * GBIT for each in lines)
    made = PullLoad(sharing, nodes, SIZE, units, registry, receives, sends, at_a_time=nodes)
    return replace(made, **fields)  # type: ignore[arg-type] # fields of it


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize(
    ("sharing", "fields"),
    [
        (PeerSharing.NONE, {}),
        (PeerSharing.NONE, {"at_a_time": 8}),
        (PeerSharing.LAYERS, {}),
        (PeerSharing.LAYERS, {"proves": True}),
        (PeerSharing.LAYERS, {"proves": True, "at_a_time": 8}),
        (PeerSharing.PIECES, {}),
    ],
)
def test_the_formula_is_near_a_simulation_of_all_transfers(
    sharing: PeerSharing, fields: dict[str, object], lines: tuple[int, int, int]
) -> None:
    units = 64 if sharing is PeerSharing.PIECES else 12
    given_ = load(sharing, 60, units, lines, **fields)
    ratio = simulated(given_).last_seconds / estimated_seconds(given_)
    assert 0.9 < ratio < 1.25, ratio


@settings(max_examples=40, deadline=None)
@given(
    sharing=st.sampled_from(PeerSharing), nodes=st.integers(1, 24), units=st.integers(1, 8),
    at_a_time=st.integers(1, 24), lines=st.tuples(*[st.integers(1, 100)] * 3), proves=st.booleans(),
)  # fmt: skip
def test_no_way_is_faster_than_the_lines(
    sharing: PeerSharing, nodes: int, units: int, at_a_time: int, lines: tuple[int, int, int],
    *, proves: bool,
) -> None:  # fmt: skip
    given_ = load(sharing, nodes, units, lines, at_a_time=at_a_time, proves=proves)
    found = simulated(given_, seed=units)
    copies = nodes if sharing is PeerSharing.NONE else 1
    assert found.registry_bytes >= SIZE * copies * 0.999
    least = max(SIZE / given_.receives, found.registry_bytes / given_.registry)
    assert found.last_seconds >= least * 0.999
    assert found.last_seconds >= found.median_seconds
    waves = ceil(nodes / at_a_time) if sharing is not PeerSharing.PIECES else 1
    assert waves == 1 or found.last_seconds > SIZE / given_.receives * 1.5
    assert found == simulated(given_, seed=units)


def test_peers_help_only_a_wave_that_finds_a_holder() -> None:
    all_at_once = load(PeerSharing.LAYERS, 100, 12, LINES[0])
    alone = load(PeerSharing.NONE, 100, 12, LINES[0])
    assert simulated(all_at_once).registry_bytes == pytest.approx(100 * SIZE)
    waves = load(PeerSharing.LAYERS, 100, 12, LINES[0], at_a_time=16, proves=True)
    found = simulated(waves)
    assert found.registry_bytes == pytest.approx(SIZE)
    assert found.last_seconds < simulated(alone).last_seconds


def test_a_registry_of_25_gbit_is_sized_for_1000_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["sim", "registry", "-o", "json"]) == 0
    alone, bounded, herd, waves, pieces = json.loads(capsys.readouterr().out)
    assert alone["seconds"] == herd["seconds"] == 5440.0
    assert bounded["registryBytes"] == pytest.approx(17e12)
    assert waves["seconds"] < 700
    assert (waves["simulatedSeconds"], waves["registryBytes"]) == (
        pytest.approx(waves["seconds"], rel=0.15), pytest.approx(17e9, rel=0.01),
    )  # fmt: skip
    assert (pieces["simulatedSeconds"], pieces["seconds"] < 20) == (None, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--registry", "fast"], "--registry: 'fast' is no rate"),
        (["--send", "1"], "--send: 1 must be from"),
        (["--image", "17 GB"], "--image '17 GB' is no size such as 17G"),
        (["--image", "0"], "--image 0 must be from"),
        (["--nodes", "0"], "--nodes"),
    ],
)
def test_wrong_amounts_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sim", "registry", *flags]) == 2
    assert message in capsys.readouterr().err
