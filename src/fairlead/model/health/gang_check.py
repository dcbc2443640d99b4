"""The test of a gang's nodes: which members measure each other, and whose node a result condemns.

    ring        each member with both of its neighbours, in two or three rounds of pairs
    second      a member all of whose pairs are bad, with one all of whose pairs are good
    judgement   a node is bad if every pair of it is bad, and a partner of it is good elsewhere

So a bad node is told apart from its healthy partners, and a dip that does not come again condemns
nothing. A partner that did not answer is no measurement. The members' programs ask these functions
whether to go on; what is done about a node follows from the controller's own call alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from fairlead.api.cluster.machine_result import MachineFinding, PairMeasure, SuiteResult
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.model.health.judgement import PeerFigures, judged

#: Of what the best quarter of the pairs has: less is slow. Of few pairs, which may be at different
#: distances, much less.
SLOW_SHARE, SLOW_SHARE_OF_FEW, FEW = 0.5, 0.25, 8
#: Of what the best quarter has, and beside it: more is late.
LATE_TIMES, LATE_SECONDS = 10.0, 0.002
#: Pairs that can be compared. A bad node of three has two of three pairs, so no median is asked.
PAIRS_MIN = 3
#: More nodes at once, and more than one in `BAD_SHARE`, are rather a wrong test.
BAD_MAX, BAD_SHARE = 3, 5
#: Members of a role whose figures make the median: a bound on the work.
ALIKE_MAX = 16
_GPU_PREFIX = "gpu-"
#: Why a pair is bad whose path has a smaller MTU than its ends, and does not say so.
FULL_PACKETS = "packets of full size are lost and small ones arrive: see the MTU of the path"
_NAMED_MAX = 3

#: Two ranks, the lower one first.
Pair: TypeAlias = tuple[int, int]
T = TypeVar("T", int, str, tuple[str, ...])
Findings: TypeAlias = tuple[MachineFinding, ...]


@dataclass(frozen=True, slots=True)
class CheckedMember:
    """What a member of the gang left; None: nothing that can be read, and why."""

    rank: int
    node: str
    role: str
    result: SuiteResult | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class GangVerdict:
    """What a test of a gang says; `failed` has the ranks whose nodes failed, and why."""

    outcome: MachineOutcome
    message: str
    failed: Mapping[int, str] = field(default_factory=dict[int, str])


# The plan


def ring(size: int) -> Iterator[tuple[Pair, ...]]:
    """Yield the rounds in which each member meets its neighbours; no member twice in a round."""
    if size == 2:
        yield ((0, 1),)
    if size < 3:
        return
    yield tuple((i, i + 1) for i in range(0, size - 1, 2))
    even = tuple((i, i + 1) for i in range(1, size - 1, 2))
    if size % 2:
        yield even
        yield ((0, size - 1),)
    else:
        yield (*even, (0, size - 1))


def second_opinions(measures: Mapping[Pair, PairMeasure], nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Return the pairs in which members with bad pairs alone meet members with good pairs alone.

    `nodes` has the node of each rank.
    """
    bad = bad_pairs(measures, nodes)
    of = _by_rank(measures, nodes)
    healthy = [rank for rank in sorted(of) if not any(pair in bad for pair in of[rank])]
    out: list[Pair] = []
    for rank in sorted(of):
        if not all(pair in bad for pair in of[rank]):
            continue
        known = {rank, *(other for pair in of[rank] for other in pair)}
        partner = next(
            (each for each in healthy if each not in known and nodes[each] != nodes[rank]), None
        )
        if partner is not None:
            healthy.remove(partner)
            out.append((min(rank, partner), max(rank, partner)))
    return tuple(out)


# The judgement


def merged(results: Mapping[int, SuiteResult]) -> dict[Pair, PairMeasure]:
    """Return what was measured by pair: of both ends the one that measured, wrong data of either.

    A pair of which both ends have no measurement is left out.
    """
    out: dict[Pair, PairMeasure] = {}
    for rank, result in sorted(results.items()):
        for each in result.pairs:
            if each.peer == rank or each.peer not in results:
                continue
            pair = (min(rank, each.peer), max(rank, each.peer))
            known = out.get(pair)
            if each.error and not each.is_wrong:
                continue
            if known is not None:
                best = max(known, each, key=lambda one: one.bytes_per_second)
                trip = max(known.round_trip_seconds, each.round_trip_seconds)  # one end has it
                is_wrong = known.is_wrong or each.is_wrong
                loses = known.loses_full_packets or each.loses_full_packets
                each = replace(best, is_wrong=is_wrong, round_trip_seconds=trip,
                               loses_full_packets=loses)  # fmt: skip
            out[pair] = each
    return out


def bad_pairs(measures: Mapping[Pair, PairMeasure], nodes: Sequence[str]) -> dict[Pair, str]:
    """Return the pairs between two nodes that change or lose data, or are slow or late; and why."""
    seen = {pair: each for pair, each in measures.items() if nodes[pair[0]] != nodes[pair[1]]}
    bad = {pair: FULL_PACKETS for pair, each in seen.items() if each.loses_full_packets}
    bad |= {pair: "data arrived changed" for pair, each in seen.items() if each.is_wrong}
    if len(seen) < PAIRS_MIN:
        return bad
    quarter = len(seen) // 4
    rate = sorted((each.bytes_per_second for each in seen.values()), reverse=True)[quarter]
    trip = sorted(each.round_trip_seconds for each in seen.values())[quarter]
    share = SLOW_SHARE if len(seen) >= FEW else SLOW_SHARE_OF_FEW
    for pair, each in seen.items():
        if pair in bad:
            continue
        if each.bytes_per_second < share * rate:
            bad[pair] = f"{each.bytes_per_second:.3g} B/s, of {rate:.3g} between the others"
        elif each.round_trip_seconds > max(LATE_TIMES * trip, trip + LATE_SECONDS):
            bad[pair] = f"{each.round_trip_seconds:.3g} s there and back, of {trip:.3g}"
    return bad


def _by_rank(measures: Mapping[Pair, PairMeasure], nodes: Sequence[str]) -> dict[int, list[Pair]]:
    out: dict[int, list[Pair]] = {}
    for pair in measures:
        if nodes[pair[0]] != nodes[pair[1]]:
            for rank in pair:
                out.setdefault(rank, []).append(pair)
    return out


def located(measures: Mapping[Pair, PairMeasure], nodes: Sequence[str]) -> dict[int, str]:
    """Return the ranks to whose nodes the bad pairs lead, and why."""
    bad = bad_pairs(measures, nodes)
    met: dict[int, dict[int, str]] = {}
    for rank, pairs in _by_rank(measures, nodes).items():
        others = {pair: pair[1] if pair[0] == rank else pair[0] for pair in pairs}
        met[rank] = {other: bad.get(pair, "") for pair, other in others.items()}
    return {rank: f"network: {why}" for rank, why in condemned(met).items()}


def condemned(met: Mapping[T, Mapping[T, str]]) -> dict[T, str]:
    """Return those to whom bad pairs lead, and why.

    `met`: of each the partners that it was measured with, and what was bad; "": nothing. Bad are
    those of which every pair is bad, with two partners at least, one of which is good elsewhere.
    """
    good = {each for each, partners in met.items() if not all(partners.values())}
    return {
        each: f"{next(iter(partners.values()))}, with {len(partners)} partners"
        for each, partners in sorted(met.items())
        if each not in good and len(partners) >= 2 and partners.keys() & good
    }


def judge_gang(members: Sequence[CheckedMember]) -> GangVerdict:
    """Return what the results of a gang say; `members` are in rank order, without gaps."""
    results = {each.rank: each.result for each in members if each.result is not None}
    alike = _alike(members, results)
    judged_ = {
        rank: _findings(result, alike[members[rank].role, result.devices])
        for rank, result in results.items()
    }
    failed = {
        rank: f"{each.test}: {each.message}"[:WHY_MAX]
        for rank, findings in judged_.items() for each in findings
        if each.outcome is MachineOutcome.FAILED
    }  # fmt: skip
    nodes = [each.node for each in members]
    measures = merged(results)
    failed = located(measures, nodes) | failed
    bad_nodes = {nodes[rank] for rank in failed}
    if len(bad_nodes) > max(BAD_MAX, len(set(nodes)) // BAD_SHARE):
        text = f"{len(bad_nodes)} nodes failed at once, which is rather the test than the nodes"
        return GangVerdict(MachineOutcome.ERROR, text)
    if failed:
        shown = [f"{nodes[rank]} ({why})" for rank, why in sorted(failed.items())[:_NAMED_MAX]]
        more = f" and {len(failed) - _NAMED_MAX} more" if len(failed) > _NAMED_MAX else ""
        return GangVerdict(MachineOutcome.FAILED, ", ".join(shown) + more, dict(failed))
    errors = [f"{each.node}: {each.why}" for each in members if each.result is None]
    errors += [
        f"{nodes[rank]}: {each.test}: {each.message}"[:WHY_MAX]
        for rank, findings in judged_.items() for each in findings
        if each.outcome is MachineOutcome.ERROR
    ]  # fmt: skip
    bad = bad_pairs(measures, nodes)
    if errors:
        more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
        return GangVerdict(MachineOutcome.ERROR, errors[0] + more)
    if any(each.is_wrong or each.loses_full_packets for each in measures.values()):
        (a, b), why = next(iter(bad.items()))
        text = f"{why} between {nodes[a]} and {nodes[b]}: which one it is was not found"
        return GangVerdict(MachineOutcome.ERROR, text)
    found = [each for findings in judged_.values() for each in findings]
    if not any(each.outcome is MachineOutcome.PASSED for each in found):
        return GangVerdict(MachineOutcome.SKIPPED, "nothing was measured")
    return GangVerdict(MachineOutcome.PASSED, "; ".join(_notes(bad, nodes)))


def _notes(bad: Mapping[Pair, str], nodes: Sequence[str]) -> Iterator[str]:
    for (a, b), why in list(bad.items())[:_NAMED_MAX]:
        yield f"between {nodes[a]} and {nodes[b]}: {why}"


def _alike(
    members: Sequence[CheckedMember], results: Mapping[int, SuiteResult]
) -> dict[tuple[str, tuple[str, ...]], PeerFigures]:
    """Return some members of each role and kind of GPU, with what they found."""
    out: dict[tuple[str, tuple[str, ...]], dict[str, Sequence[MachineFinding]]] = {}
    for rank, result in results.items():
        some = out.setdefault((members[rank].role, result.devices), {})
        if len(some) < ALIKE_MAX:
            some[str(rank)] = _of_gpus(result)
    return {key: PeerFigures(some) for key, some in out.items()}


def _findings(result: SuiteResult, alike: PeerFigures) -> Findings:
    """Return what a member found, its GPUs compared with those of its role.

    Other figures are of machines that the gang may share with others, so they are not judged.
    """
    others = tuple(each for each in result.measured if not each.test.startswith(_GPU_PREFIX))
    return (*others, *judged(replace(result, measured=_of_gpus(result)), alike))


def _of_gpus(result: SuiteResult) -> Findings:
    return tuple(each for each in result.measured if each.test.startswith(_GPU_PREFIX))
