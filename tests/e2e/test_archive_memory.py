"""What a tenant may do to the archive takes little memory of a replica: each attack in full size.

Each runs in a process of its own, which has 1 GiB by default (`resources.limits` of the chart) and
must not grow by more than GROWTH_BYTES_MAX: the controllers need the rest. Queries go over HTTP.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as with_
from tests.unit.app.test_archive_bounds import (
    HISTORY,
    LOGS,
    MEBI,
    as_an_earlier_version_wrote,
    in_namespace,
    read_away,
    served,
)
from tests.unit.history.contract import log

from fairlead.api.jobs.job import Role
from fairlead.api.kubernetes.core import Container, EnvVar, PodSpec, PodTemplate
from fairlead.history.memory import MemoryHistory
from fairlead.history.sqlite import SqliteHistory, SqliteLogs
from fairlead.runtime.kept.history import record_of
from fairlead.testing.builders import make_job

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
GROWTH_BYTES_MAX = 300 * MEBI


async def jobs_that_are_made_and_deleted(_: Path) -> None:
    """Jobs of 0.9 MB are created, cancelled and deleted; the history is in memory."""
    history = MemoryHistory()
    env = tuple(EnvVar(f"A{number}", "x" * 1_000) for number in range(900))
    pod = PodSpec(containers=(Container("main", image="i", env=env),))
    job = make_job("mine", roles=(Role("worker", PodTemplate(spec=pod)),))
    for number in range(450):
        metadata = with_(job.metadata, uid=f"uid-{number}")
        await history.record(record_of(with_(job, metadata=metadata)))
    async with served(history) as address:
        assert await read_away(address, HISTORY) > 0


async def one_answer_of_large_records(directory: Path) -> None:
    """The history has 300 records of 0.9 MB, from before documents were bounded."""
    history = SqliteHistory.open(directory / "h.db", runner=asyncio.to_thread, bytes_max=1 << 40)
    for number in range(300):
        await history.record(as_an_earlier_version_wrote(number, 900_000))
    async with served(history) as address:
        assert await read_away(address, HISTORY) > 230 * MEBI
    await history.close()


async def logs_that_decompress_to_more_than_a_gibibyte(directory: Path) -> None:
    """One namespace has 300 logs of 4 MiB of zeros, under the name of one job."""
    logs = SqliteLogs.open(directory / "l.db", runner=asyncio.to_thread)
    for number in range(300):
        bomb = log(f"worker-{number}", job_uid=f"job-{number // 100}", text=bytes(4 * MEBI))
        await logs.keep(in_namespace(bomb))
    async with served(logs=logs) as address:
        assert 200 * MEBI < await read_away(address, f"{LOGS}?attempt=1") < 257 * MEBI
    await logs.close()


async def logs_that_do_not_shrink(directory: Path) -> None:
    """One namespace logs more than the archive has room for; another one's log stays."""
    logs = SqliteLogs.open(directory / "l.db", runner=asyncio.to_thread, bytes_max=48 * MEBI)
    await logs.keep(in_namespace(log("worker-0")))
    for number in range(26):
        loud = log("worker-0", job_uid=f"job-{number}", text=os.urandom(4 * MEBI))
        await logs.keep(replace(loud, namespace="loud"))
    assert (directory / "l.db").stat().st_size < 90 * MEBI
    async with served(logs=logs) as address:
        assert await read_away(address, LOGS) > 0
    await logs.close()


ATTACKS: dict[str, Callable[[Path], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        jobs_that_are_made_and_deleted,
        one_answer_of_large_records,
        logs_that_decompress_to_more_than_a_gibibyte,
        logs_that_do_not_shrink,
    )
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_replica_survives(attack: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.e2e.test_archive_memory", attack, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < GROWTH_BYTES_MAX


def _peak_bytes() -> int:
    """Return the most memory that this process had; `ru_maxrss` begins with that of its parent."""
    status = Path("/proc/self/status").read_text()
    [kibibytes] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kibibytes) * 1024


if __name__ == "__main__":
    before = _peak_bytes()
    asyncio.run(ATTACKS[sys.argv[1]](Path(sys.argv[2])))
    print(_peak_bytes() - before)
