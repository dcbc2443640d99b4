"""JupyterLab as a job: what the job runs, and how a client finds the server and its token.

The token is drawn by the job itself and is in no object, argument, variable or log: those are read
by more people than may run commands in the job, and kernels write theirs into notebooks. It is in a
directory that only the job's own user can read, also in the file in which Jupyter says where it
listens. A client reads that one as `fairlead exec` would, so it needs the same right.

Source: jupyter_server's `jpserver-PID.json` (`ServerApp.server_info`), JUPYTER_TOKEN_FILE
(`IdentityProvider`), and its traits that end idle kernels, terminals and servers.
"""

from __future__ import annotations

import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.jobs.job import Job
from fairlead.cli.job_request.jobspec import Program

#: Of `sh -c`, by which a job that runs a notebook is known.
NAME = "fairlead-notebook"
#: Ports of this machine that are tried first, the same for the same job.
PORTS = range(20_000, 30_000)
_DIRECTORY = "directory=${TMPDIR:-/tmp}/.fairlead-notebook-$FAIRLEAD_JOB_UID"
_SERVER = f"""{_DIRECTORY}
command -v jupyter-lab >/dev/null || {{
  echo "there is no JupyterLab here: pip install jupyterlab, or an --image that has it" >&2
  exit 127
}}
mkdir -m 700 "$directory" 2>/dev/null
[ -d "$directory" ] && [ ! -L "$directory" ] && [ -O "$directory" ] || {{
  echo "$directory is not this job's own" >&2
  exit 1
}}
rm -f "$directory"/jpserver-*
JUPYTER_RUNTIME_DIR=$directory JUPYTER_TOKEN_FILE=$directory/token
export JUPYTER_RUNTIME_DIR JUPYTER_TOKEN_FILE
(umask 077 && od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' >"$JUPYTER_TOKEN_FILE")
[ "$(wc -c <"$JUPYTER_TOKEN_FILE")" -eq 48 ] || {{ echo "no token could be drawn" >&2; exit 1; }}
jupyter-lab --no-browser --allow-root --ServerApp.ip=127.0.0.1 "$@" &
trap 'kill -TERM $!' TERM
code=0
wait $! || code=$?
while kill -0 $! 2>/dev/null; do
  code=0
  wait $! || code=$?
done
rm -rf "$directory"
exit $code
"""
#: Prints where the server listens; nothing while it does not yet.
FIND = ("sh", "-c", f"""{_DIRECTORY}
[ -O "$directory" ] || exit 0
cat "$directory"/jpserver-*.json 2>/dev/null || true
""")  # fmt: skip


class NotebookServer(msgspec.Struct, frozen=True):
    """Where a server listens in its member, and what it asks for."""

    port: Annotated[int, Meta(ge=1, le=65_535)]
    token: Annotated[str, Meta(pattern="^[0-9a-f]{48}$")]
    base_url: Annotated[str, Meta(pattern="^/([A-Za-z0-9._~/-]*/)?$", max_length=1_000)] = "/"

    def address(self, port: int) -> str:
        """Return what a browser is given, where this port of this machine leads to the server."""
        return f"http://127.0.0.1:{port}{self.base_url}lab?token={self.token}"


def notebook_program(idle_seconds: int, arguments: tuple[str, ...]) -> Program:
    """Return what the job runs. Kernels and terminals end once they were idle for so long, and the
    server, and so the job, once it had none for so long; 0: never.
    """
    idle = (
        f"--MappingKernelManager.cull_idle_timeout={idle_seconds}",
        "--MappingKernelManager.cull_connected=True",
        f"--MappingKernelManager.cull_interval={min(max(idle_seconds, 1), 60)}",
        f"--TerminalManager.cull_inactive_timeout={idle_seconds}",
        f"--TerminalManager.cull_interval={min(max(idle_seconds, 1), 60)}",
        f"--ServerApp.shutdown_no_activity_timeout={idle_seconds}",
    )
    words = ("sh", "-c", _SERVER, NAME, *idle, *arguments)
    return Program(words, called="notebook")


def is_notebook(job: Job) -> bool:
    """True for a job that runs `notebook_program`."""
    containers = (each for role in job.spec.roles for each in role.template.spec.containers)
    return any(NAME in container.command for container in containers)


def read_server(text: bytes) -> NotebookServer | None:
    """Return the server of Jupyter's file; None where there is none yet, or half of one."""
    try:
        return msgspec.json.decode(text, type=NotebookServer)
    except ValueError:
        return None


def usual_port(job: Job) -> int:
    """Return the port of this machine that leads to a job's server, where it is free: a page that
    is open there finds its kernels again.
    """
    return PORTS[zlib.crc32(job.metadata.uid.encode()) % len(PORTS)]
