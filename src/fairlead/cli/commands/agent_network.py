"""`agent network`: what the kernel has counted of the traffic of this machine's pods."""

from __future__ import annotations

import click
import msgspec

from fairlead.cli.connection.common import Common, common
from fairlead.cli.views.agent_network import POD_COLUMNS, USAGE_COLUMNS, pod_rows, usage_rows
from fairlead.input.errors import Code, Exit, fail
from fairlead.node.registry import load_settings
from fairlead.node.shaping import remove_shaping
from fairlead.node.traffic import PodSource, read_pods, read_usage, remove_table

_TOP_MAX = 1000


@click.command(
    epilog="""Examples:

    \b
      fairlead agent network
      fairlead agent network --config node.yaml --top 20
      fairlead agent network -o json
      fairlead agent network --remove

    Exit codes: 0, or 2 where nothing is counted.
    """
)
@click.option("--config", metavar="FILE", default="", help="YAML of the agent; it names pods.")
@click.option("--top", type=click.IntRange(0, _TOP_MAX), default=0, show_default=True,
              help="Also show so many lines of pods with the most bytes.")  # fmt: skip
@click.option(
    "--remove",
    is_flag=True,
    help="Stop counting and shaping: take all away that the agent has set.",
)
@common(cluster=False)
def network(common_: Common, *, config: str, top: int, remove: bool) -> int:
    """Show the traffic of this machine's pods, by namespace and class.

    Reads what fairlead agent run has the kernel count since the machine started. Namespace (node)
    is the machine itself with the pods of its network.
    """
    if remove and (top or config):
        raise fail(Code.BAD_COMBINATION, "--remove goes with neither --top nor --config")
    settings = load_settings(config).traffic
    try:
        if remove:
            remove_table()
            was_shaping = remove_shaping()
            common_.note("removed the table inet fairlead")
            if was_shaping:
                common_.note("removed all limits of pods")
            return Exit.OK
        source = PodSource(settings.pods, settings.token_file, settings.ca_file)
        found = read_usage(read_pods(source) if top and settings.pods else (), top=top)
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        help_ = "run it as root on the node, with the agent's --config"
        raise fail(Code.BAD_VALUE, f"the traffic cannot be read: {said}", help=(help_,)) from error
    if found is None:
        raise fail(Code.BAD_VALUE, "nothing is counted on this machine",
                   help=("run fairlead agent run with traffic.pods in its --config",))  # fmt: skip
    usage, pods = found
    if common_.is_structured:
        common_.data(msgspec.to_builtins(usage) | {"pods": msgspec.to_builtins(pods)})
        return Exit.OK
    common_.table(USAGE_COLUMNS, usage_rows(usage), empty="no traffic yet")
    if top:
        common_.emit("")
        common_.table(POD_COLUMNS, pod_rows(pods), empty="no traffic of pods yet")
    for spot in usage.blind_spots:
        common_.note(f"not counted: {spot}")
    return Exit.OK
