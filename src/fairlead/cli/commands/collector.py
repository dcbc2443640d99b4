"""`collector`: writes what the agent of a node reports into the cluster."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.connect import Choice, replica_connection


@click.command(
    epilog="""Examples:

    \b
      fairlead collector --report /run/fairlead/node.json --node n17

    Ends at SIGTERM and SIGINT. Exit codes: 0, or 2 to 5 when it cannot start.
    """
)
@click.option("--report", metavar="FILE", required=True,
              help="Report of the agent: fairlead agent run --report FILE.")  # fmt: skip
@click.option("--node", metavar="NAME", required=True, help="The node that it is of.")
@click.option("--rates", metavar="FILE", default="",
              help="Write the node's shares of teams' budgets there, for the agent.")  # fmt: skip
@click.option("--requests", metavar="FILE", default="",
              help="Write there what the agent is asked for: resets and reboots.")  # fmt: skip
@click.option("--tuning", metavar="FILE", default="",
              help="Write there the name of the tuning profile that the node's label says, for the "
                   "agent.")  # fmt: skip
@common(output=False)
def collector(
    common_: Common, *, report: str, node: str, rates: str, requests: str, tuning: str
) -> None:
    """Write what a node's agent reports into the cluster.

    Into the NodeReport of the node, whenever something changes: on average at most once in five
    seconds, and every ten minutes otherwise. What cannot be read or written is logged and tried
    again.

    On a cluster it runs as a pod on the node, whose token names the node.
    """
    from fairlead.app.collector import REPORT_BYTES_MAX, Collector
    from fairlead.app.signals import stop_on_signals
    from fairlead.kube.client import HttpClient
    from fairlead.node.files import on_replaced, read_file, replace_file
    from fairlead.runtime.clock import SystemClock
    from fairlead.runtime.logs import configure

    connection = replica_connection(Choice(common_.kubeconfig, common_.context), os.environ)

    async def main() -> None:
        client, clock = HttpClient(connection), SystemClock()
        log = configure(clock=clock)
        tell = partial(replace_file, Path(rates), mode=0o644) if rates else None
        running = Collector(
            client,
            node,
            partial(read_file, Path(report), REPORT_BYTES_MAX),
            tell=tell,
            ask=partial(replace_file, Path(requests), mode=0o644) if requests else None,
            choose=partial(replace_file, Path(tuning), mode=0o644) if tuning else None,
            clock=clock,
            rng=random.Random(),  # noqa: S311 # jitter, not secrets
            log=log,
        )
        stop_on_signals(running.stop)
        with ExitStack() as stack:
            try:
                stack.enter_context(on_replaced(Path(report), running.notify))
            except OSError as error:  # no more of them for this user, or no folder yet
                log.warning("Reports are read late: no notice of them", error=str(error))
            try:
                await running.run()
            finally:
                await client.close()

    asyncio.run(main())
