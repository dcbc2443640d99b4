"""One side of a pair of test pods, on two nodes that are idle: it proves itself by the key of the
pair, measures with the other side, and leaves what it found.

The first side listens, and the second one connects. What is not there in time is an error, which
says nothing about either node.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.api.cluster.machine_result import PairMeasure, SuiteResult
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.cluster.node_suites import pair_suite
from fairlead.api.cluster.node_test import PAIR_PORT
from fairlead.member.gang_link import Gang, NoKeyError, read_key
from fairlead.node.gang_gate import pairs

_CONNECTS, _LISTENS = 0, 1


def run_pair(
    pair: str, key: Path, *, address: str = "", port: int = PAIR_PORT, host: str = "",
    wait_seconds: float,
) -> SuiteResult:  # fmt: skip
    """Return what this side of a pair measured; never raises.

    `pair`: the name of the pair, alike on both sides. `address`: of the side that listens; "": it
    is this one, at the loopback address `host`, or else at all addresses.
    """
    try:
        secret = read_key(key)
        if address:
            gang = Gang(_CONNECTS, 2, address, port, pair, secret)
            found = pairs.meet(
                gang, address, port, number=0, server=_LISTENS, wait_seconds=wait_seconds,
                is_both_ways=True,
            )  # fmt: skip
        else:
            gang = Gang(_LISTENS, 2, "", port, pair, secret)
            with pairs.listen(host, port) as listener:
                found = pairs.serve(
                    gang, listener, 0, _CONNECTS, wait_seconds=wait_seconds, is_both_ways=True
                )
    except (NoKeyError, OSError) as error:
        found = PairMeasure(_CONNECTS if not address else _LISTENS, error=f"{error}"[:WHY_MAX])
    return SuiteResult(pair_suite().name, (), pairs=(found,))
