"""`ssh-config` and `ssh-proxy`: the members of jobs as hosts of OpenSSH's client."""

from __future__ import annotations

import asyncio
import os
import sys
from threading import Lock

import click

from fairlead import terminal
from fairlead.api.jobs.job import Job, JobState
from fairlead.cli.cluster.lookup import find_job, missing_job
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, check_extra, common, kept_api
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.follow import until_started
from fairlead.cli.records.members import MemberReference, running_members
from fairlead.cli.records.watching import Gone, attempt_end
from fairlead.cli.sessions.ssh_config import (
    SshFiles,
    SshHost,
    config_text,
    include,
    include_line,
    is_included,
    parse_host,
    ssh_files,
    user_config,
)
from fairlead.cli.views.jobs import ending, state_of
from fairlead.input.errors import CliError, Code, Exit, fail

#: Between two looks at whether the member is still there.
LOOK_SECONDS = 5.0


@click.command(
    "ssh-config",
    epilog="""Examples:

    \b
      fairlead ssh-config --install
      ssh train-1.fairlead
      ssh -L 6006:localhost:6006 worker-3.train-1.fairlead
      rsync -a src/ train-1.fairlead:src/
      fairlead ssh-config -n team-b --context prod     print it only
    """,
)
@click.option("--install", is_flag=True,
              help="Write it, and include it in ~/.ssh/config.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask before ~/.ssh/config is changed.")
@common(output=False)
def ssh_config(common_: Common, *, install: bool, yes: bool) -> int:
    """Print what makes ssh JOB.fairlead lead to a member of a job.

    Then ssh, scp, sftp, rsync, git and editors know the hosts JOB.fairlead, MEMBER.JOB.fairlead and
    MEMBER.JOB.NAMESPACE.fairlead. Images need no sshd, and no key is asked for. Of ~/.ssh/config
    only one line at its beginning is written, after a question; -n, --kubeconfig and --context
    become those of all connections.
    """
    check_extra("ssh", "ssh", "asyncssh")
    files = ssh_files(os.environ)
    text = config_text(files, common_.where())
    if not install:
        common_.emit(text)
        return Exit.OK
    _prepare(files)
    files.write_config(text)
    path = user_config(os.environ)
    if not is_included(path, files):
        if not yes:
            _ask(path.as_posix(), include_line(files))
        include(path, files)
    common_.note("ssh JOB.fairlead leads to the first member of a job")
    return Exit.OK


def _ask(path: str, line: str) -> None:
    if not sys.stdin.isatty():
        raise fail(
            Code.BAD_COMBINATION, f"{path} is not changed without a question",
            help=(f"put this line first: {line}", "or: fairlead ssh-config --install --yes"),
        )  # fmt: skip
    click.confirm(f"Put this line at the beginning of {path}?\n  {line}\n", abort=True, err=True)


@click.command("ssh-proxy")
@click.argument("host", metavar="HOST")
@common(output=False)
def ssh_proxy(common_: Common, *, host: str) -> int:
    """Speak SSH on stdin and stdout, for ssh to be led to a member.

    It is the ProxyCommand of what fairlead ssh-config prints. HOST is JOB, MEMBER.JOB or
    MEMBER.JOB.NAMESPACE, each with .fairlead at its end or without it.
    """
    check_extra("ssh", "ssh", "asyncssh")
    if sys.stdin.isatty():
        raise fail(Code.BAD_COMBINATION, "ssh-proxy is started by ssh",
                   help=("fairlead ssh-config --install, then: ssh JOB.fairlead",))  # fmt: skip
    asked = parse_host(host)
    api: Api = common_.connect()
    space = asked.namespace or common_.space(api.connection.namespace)
    job = find_job(api, space, name_of(api, space, asked.reference.job))
    name = job.metadata.name
    try:
        if job.status.state != JobState.RUNNING.value:
            job = until_started(common_, api, (space, name))
        if job.is_finished:
            raise fail(Code.NOT_STARTED, f"job {name} has ended: {state_of(job)}, {ending(job)}",
                       help=(f"fairlead resubmit {name} runs it again",))  # fmt: skip
        return asyncio.run(_serve(common_, api, job, asked))
    except Gone:
        raise CliError(missing_job(api, space, name)) from None
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


async def _serve(common_: Common, api: Api, job: Job, asked: SshHost) -> int:
    """Serve one client before a member of a job that runs."""
    from fairlead.cli.sessions.ssh_server import SshMember, serve
    from fairlead.kube.websocket import SocketServer

    space, name = job.metadata.key
    _, pods = running_members(api, space, MemberReference(name, asked.reference.member))

    credential, look, one_by_one = kept_api(common_), kept_api(common_), Lock()

    def now() -> SocketServer:
        with one_by_one:
            fresh: Api = credential()
            return SocketServer(fresh.connection, fresh.token())

    async def until_ended() -> str:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if (ended := await asyncio.to_thread(attempt_end, look, job)) is not None:
                    return f"the attempt of job {name} has ended; the job is {state_of(ended)}"
            except Gone:
                return f"job {name} is gone"

    member = SshMember(pods[0], asked.host, lambda: asyncio.to_thread(now), terminal.tell)
    return await serve(member, _prepare(ssh_files(os.environ)), until_ended)


def _prepare(files: SshFiles) -> bytes:
    """Return the host key, and have the client know it."""
    import asyncssh

    def new_key() -> bytes:
        return asyncssh.generate_private_key("ssh-ed25519").export_private_key()

    def public(key: bytes) -> bytes:
        return asyncssh.import_private_key(key).export_public_key()

    return files.prepare(new_key, public)
