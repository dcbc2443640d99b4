"""`fairlead notebook`: a way to a JupyterLab that outlives the way, and who may take it.

A stand-in listens, asks for the token and ends as JupyterLab does, and starts ten times as fast.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.patience import PATIENCE_SECONDS

from fairlead.cli.sessions.notebook import notebook_program

pytestmark = pytest.mark.e2e

_JUPYTER = """
import http.server, json, os, sys
from pathlib import Path

token = Path(os.environ["JUPYTER_TOKEN_FILE"]).read_text()


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.path.endswith(f"token={token}")
        answer = json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:]} if is_known else {})
        self.send_response(200 if is_known else 403)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())
        self.wfile.flush()
        if is_known and "/stop" in self.path:
            os._exit(0)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Server)
info = {"port": server.server_port, "token": token, "base_url": "/", "pid": os.getpid()}
runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
(runtime / f"jpserver-{os.getpid()}.json").write_text(json.dumps(info))
print("serves", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("notebook"))
    programs = world.root / "bin"
    programs.mkdir()
    jupyter = programs / "jupyter-lab"
    jupyter.write_text(f"#!{sys.executable}\n{_JUPYTER}")
    jupyter.chmod(0o755)
    world.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    world.up("--nodes", "0", "--listen", "127.0.0.1:0")
    yield world
    world.down()


def opened(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = shell.start("notebook", *arguments)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ask(address: str) -> dict[str, object]:
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said


def directory_of(shell: Shell, job: str) -> Path:
    uid = shell.job(job)["metadata"]["uid"]
    return Path(os.environ.get("TMPDIR", "/tmp")) / f".fairlead-notebook-{uid}"


def test_a_notebook_outlives_its_client_and_is_joined_again_under_the_same_address(
    shell: Shell,
) -> None:
    flags = ("--name", "lab", "--cpus", "50m", "--idle", "90m", "--", "--ServerApp.x=1")
    process, address = opened(shell, *flags)
    assert address.startswith("http://127.0.0.1:")
    first = ask(address)
    arguments = first["arguments"]
    assert isinstance(arguments, list)
    assert "--ServerApp.shutdown_no_activity_timeout=5400" in arguments
    assert arguments[-1] == "--ServerApp.x=1"
    process.kill()
    ended(process)
    process, again = opened(shell, "--join", "lab")
    assert again == address
    assert ask(again)["pid"] == first["pid"]
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert (code, "notebook --join lab joins it again" in said) == (0, True)
    process, again = opened(shell, "--join", "lab")
    ask(again.replace("/lab?", "/stop?"))
    code, said = ended(process)
    assert (code, "lab Succeeded" in said) == (0, True)


def test_the_token_is_known_to_those_alone_who_may_run_commands_in_the_job(shell: Shell) -> None:
    process, address = opened(shell, "--name", "secret", "--cpus", "50m")
    bare, _, token = address.partition("?token=")
    assert len(token) == 48
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask(f"{bare}?token={'0' * 48}")
    for read in (("ps", "secret", "-o", "json"), ("logs", "secret"), ("why", "secret")):
        assert token not in shell.run(*read).out
    directory = directory_of(shell, "secret")
    assert stat.S_IMODE(directory.stat().st_mode) & 0o077 == 0
    assert (directory / "token").read_text() == token
    processes = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True)
    assert token not in processes.stdout
    shell.run("cancel", "secret")
    code, said = ended(process)
    assert (code != 0, "secret Cancelled" in said) == (True, True)
    assert not directory.exists()


def test_after_a_failure_the_way_leads_to_the_next_attempt_from_the_same_port(
    shell: Shell,
) -> None:
    process, address = opened(shell, "--name", "again", "--cpus", "50m")
    pid = ask(address)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    assert process.stdout is not None
    second = process.stdout.readline().strip()
    assert second.partition("/lab")[0] == address.partition("/lab")[0]
    assert second != address
    assert ask(second)["pid"] != pid
    shell.run("cancel", "again")
    ended(process)


def test_where_there_is_no_jupyterlab_the_remedy_is_said(shell: Shell) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = shell.run("notebook", "--cpus", "50m", "--env", f"PATH={path}", code=127)
    assert "there is no JupyterLab here: pip install jupyterlab" in done.err
    assert done.out == ""


@pytest.mark.parametrize("laid", ["link", "directory"])
def test_a_directory_that_another_user_laid_for_the_token_is_not_used(
    tmp_path: Path, laid: str
) -> None:
    """Users of the machine can know the uid of a job that waits."""
    shared, others = tmp_path / "tmp", tmp_path / "others"
    shared.mkdir()
    others.mkdir()
    place = shared / ".fairlead-notebook-u1"
    if laid == "link":
        place.symlink_to(others)
    elif os.geteuid() == 0:
        place.mkdir(mode=0o777)
        os.chown(place, 65534, 65534)
    else:
        pytest.skip("only root can act as another user")
    (tmp_path / "jupyter-lab").write_text("#!/bin/sh\necho started\n")
    (tmp_path / "jupyter-lab").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(shared), "FAIRLEAD_JOB_UID": "u1",
    }  # fmt: skip
    done = subprocess.run(
        notebook_program(0, ()).arguments, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not this job's own" in done.stderr
    assert list(others.iterdir()) == []
    assert list(place.iterdir()) == []


def test_contradictions_are_refused_before_anything_is_queued(shell: Shell) -> None:
    shell.run("submit", "--hold", "--name", "held", "-", stdin="#!/bin/sh\n")
    before = shell.run("ps", "-a", "-o", "name").out
    for flags, words in {
        ("--nodes", "2"): "for one member",
        ("--simulate", "3s"): "do not go together",
        ("--array", "0-3"): "starts one job",
        ("--idle", "soon"): "--idle: 'soon' is not a duration",
        ("--join", "held", "--gpus", "1"): "--join goes with",
        ("--join", "held"): "held is no notebook",
        ("--join", "nosuch"): "does not exist",
    }.items():
        done = shell.run("notebook", *flags, code=None)
        assert (done.code in (2, 3), words in done.err) == (True, True), done
    assert shell.run("ps", "-a", "-o", "name").out == before
    shell.run("cancel", "held")
