"""`agent pair`: one side of a test of the connection between two machines."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.api.meta import to_wire
from fairlead.cli.connection.common import Common, common, seconds_of
from fairlead.input.errors import Exit, writing


@click.command(
    epilog="""Examples:

    \b
      fairlead agent pair --pair n1-n2 --key key --wait 2m
      fairlead agent pair --pair n1-n2 --key key --connect 10.0.0.7

    Between idle nodes Fairlead starts it, see health.pairTests.

    Exit codes: 0 it was measured; 4 nothing was measured, which says nothing about the machines.
    """
)
@click.option("--pair", metavar="NAME", required=True, help="Name of the pair, alike on both.")
@click.option("--key", metavar="FILE", required=True,
              help="What proves both: 32 random bytes or more, alike on both.")  # fmt: skip
@click.option("--connect", metavar="ADDRESS", default="",
              help="Where the other one listens; without it this one listens.")  # fmt: skip
@click.option("--peer", metavar="NODE", default="", help="The other node, in messages.")
@click.option("--wait", metavar="DURATION", default="1m", show_default=True,
              help="Wait so long for the other one.")  # fmt: skip
@click.option("--result", metavar="FILE", default="",
              help="Write the result there instead, as a test pod leaves it.")  # fmt: skip
@common(cluster=False)
def pair(
    common_: Common, *, pair: str, key: str, connect: str, peer: str, wait: str, result: str
) -> int:
    """Measure the connection to another machine, which runs the same."""
    from fairlead.api.cluster.machine_result import encode_result
    from fairlead.app.signals import exit_on_terminate
    from fairlead.node.gang_gate import run_pair

    exit_on_terminate()
    found = run_pair(pair, Path(key), address=connect, wait_seconds=seconds_of(wait, "--wait"))
    if result:
        with writing(result):
            Path(result).write_bytes(encode_result(found))
    elif common_.is_structured:
        common_.data(to_wire(found))
    else:
        for each in found.pairs:
            rate = f"{each.bytes_per_second:.3g} B/s" + " and data was changed" * each.is_wrong
            common_.note(f"with {peer or 'the other machine'}: {each.error or rate}")
    return Exit.CONFLICT if found.pairs[0].error else Exit.OK
