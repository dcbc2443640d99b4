"""`cp`: files and directories to and from the members of a job."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath

import click

from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.members import parse_reference, running_members
from fairlead.input.errors import Code, Exit, fail


@click.command(
    epilog="""Examples:

    \b
      fairlead cp train-1:results.csv .
      fairlead cp train-1/worker-3:/data/checkpoints ./checkpoints
      fairlead cp --force src train-1:/work
    """
)
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("-f", "--force", is_flag=True, help="Replace a directory that is there.")
@common(output=False)
def cp(common_: Common, *, source: str, target: str, force: bool) -> int:
    """Copy a file or a directory to or from a member of a job.

    One of the two is JOB[/MEMBER]:PATH, a path relative to the member's directory; a path of this
    machine with a colon begins with ./ or /. A target that is a directory gets the copy under its
    own name. Nothing is there under that name before all of it has come. Links that lead out of
    what is copied are left out.
    """
    from fairlead.cli.sessions.copying import MemberCopy
    from fairlead.kube.websocket import SocketServer

    remote = [_is_remote(text) for text in (source, target)]
    if remote[0] == remote[1]:
        which = "both" if remote[0] else "none"
        raise fail(Code.BAD_VALUE, f"of SOURCE and TARGET {which} is JOB[/MEMBER]:PATH",
                   help=("fairlead cp JOB:FILE . copies from a member",
                         "fairlead cp FILE JOB: copies to one"))  # fmt: skip
    reference, _, path = (source if remote[0] else target).partition(":")
    if remote[0] and PurePosixPath(path).name in ("", ".."):
        raise fail(Code.BAD_VALUE, f"'{source}' does not name what is copied",
                   help=("JOB:/path/to/directory",))  # fmt: skip
    api: Api = common_.connect()
    space = common_.space(api.connection.namespace)
    _, pods = running_members(api, space, parse_reference(reference))
    server = SocketServer(api.connection, api.token())
    copy = MemberCopy(server, pods[0], force, common_.note)
    try:
        if remote[0]:
            asyncio.run(copy.from_member(path, target))
        else:
            asyncio.run(copy.to_member(Path(source).resolve(), path or "."))
    except KeyboardInterrupt:
        common_.note("\nnothing was copied")
        return Exit.INTERRUPTED
    return Exit.OK


def _is_remote(text: str) -> bool:
    return ":" in text and not text.startswith((".", "/", "~", ":"))
