"""Opening what `--history` names: a SQLite file (with the logs in a file beside it), or PostgreSQL.

A URL holds a password, and a command line is seen by every user of the machine: the URL can be
given in FAIRLEAD_HISTORY_URL instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.history.memory import MemoryHistory, MemoryLogs
from fairlead.history.postgres import PostgresOptions, PostgresStore, is_postgres_url, shown_url
from fairlead.history.sqlite import SqliteHistory, SqliteLogs
from fairlead.runtime.kept.history import History, HistoryError, LogStore

LOGS_SUFFIX = ".logs"
READ_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Stores:
    """The records of jobs, and the logs of members."""

    history: History
    logs: LogStore
    #: False when both end with the process.
    is_durable: bool


@asynccontextmanager
async def open_stores(where: str, *, must_exist: bool = False) -> AsyncGenerator[Stores]:
    """Open a file or a database, "" for memory, and close it in the end; HistoryError."""
    if not where:
        yield Stores(MemoryHistory(), MemoryLogs(), is_durable=False)
        return
    async with AsyncExitStack() as stack:
        if is_postgres_url(where):
            # A command that only reads fails at once; a controller waits for its database.
            patience = READ_SECONDS_MAX if must_exist else PostgresOptions().outage_seconds_max
            options = PostgresOptions(outage_seconds_max=patience)
            rng = random.Random()  # noqa: S311 # jitter, not secrets
            store = PostgresStore(where, rng=rng, runner=asyncio.to_thread, options=options)
            stack.push_async_callback(store.close)
            await store.check()
            yield Stores(store, store, is_durable=True)
            return
        if "://" in where:
            raise HistoryError(
                f"--history {shown_url(where)}: neither a file nor a postgresql:// URL"
            )
        path = Path(where).absolute()  # noqa: ASYNC240 - once, at the start
        if must_exist and not path.is_file():
            raise HistoryError(f"--history {path}: there is no such file")
        history = SqliteHistory.open(path, runner=asyncio.to_thread)
        stack.push_async_callback(history.close)
        beside = path.with_name(path.name + LOGS_SUFFIX)
        logs = SqliteLogs.open(beside, runner=asyncio.to_thread)
        stack.push_async_callback(logs.close)
        yield Stores(history, logs, is_durable=True)
