"""What was acknowledged survives `kill -9` of the writing process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.embedded.builtins import CONFIG_MAPS
from fairlead.embedded.storage.store import Store

#: Writes without end and prints the number of each write once it is acknowledged.
WRITER = """
import asyncio, sys
from pathlib import Path
from fairlead.embedded.builtins import CONFIG_MAPS
from fairlead.embedded.storage.records import record_typed
from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import WalOptions

async def main():
    log = WalOptions(compact_bytes_min=50_000)
    store = Store.open(Path(sys.argv[1]), StoreOptions(log=log))

    async def writer(number):
        for i in range(1_000_000):
            name = f"w{number}-{i % 20}"
            metadata = {"name": name, "namespace": "n", "uid": name}
            obj = {"metadata": metadata, "data": {"i": str(i)}}
            record = record_typed(CONFIG_MAPS, ("n", name), store.next_version, obj)
            store.put(CONFIG_MAPS, record)
            await store.committed(record.version)
            sys.stdout.write(f"{name} {i}\\n")
            sys.stdout.flush()

    await asyncio.gather(*(writer(number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.e2e
def test_acknowledged_writes_survive_kill_9_again_and_again(tmp_path: Path) -> None:
    for acknowledged_min in (1, 50, 500, 2_000, 3_000):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            acknowledged: dict[str, int] = {}
            for count, line in enumerate(process.stdout):
                if count == acknowledged_min:
                    process.kill()
                if not line.endswith("\n"):
                    break
                name, number = line.split()
                acknowledged[name] = int(number)

        async def contents() -> dict[str, int]:
            store = Store.open(tmp_path)
            records = store.records(CONFIG_MAPS.name)
            await store.close()
            return {record.name: int(record.plain()["data"]["i"]) for record in records}

        found = asyncio.run(contents())
        assert acknowledged
        # At most one write of each writer was on its way; it may be there or not.
        for name, number in acknowledged.items():
            assert found[name] in (number, number + 20), name
