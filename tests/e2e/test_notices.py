"""Notices of real jobs reach a real HTTP server, a real mail server and a command."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import crash, kill, processes_of
from tests.patience import PATIENCE_SECONDS
from tests.unit.notices.http_sink import HttpSink, SmtpSink

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("notices")]

SECRETS = "/api/v1/namespaces/default/secrets"


@contextmanager
def beside(*sinks: HttpSink | SmtpSink) -> Iterator[None]:
    """Let servers listen on a loop of their own."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    @asynccontextmanager
    async def listening() -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for sink in sinks:
                await stack.enter_async_context(sink.listening())
            yield

    async def serve() -> None:
        async with listening():
            ready.set()
            await over.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # answers that were still to be given
        await asyncio.sleep(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_SECONDS)
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def notices(shell: Shell, name: str) -> list[tuple[str, str]]:
    return [(each["event"], each["state"]) for each in shell.status(name).get("notices", [])]


def _touch_once_asked(file: Path, hook: HttpSink) -> None:
    """A job that ends before a decision has seen it run has no start to be notified of."""
    try:
        eventually(lambda: bool(hook.requests), True)
    finally:
        file.touch()


def test_notices_reach_their_targets_and_survive_the_end_of_the_server(tmp_path: Path) -> None:
    shell, hook, inner, mail = Shell(tmp_path), HttpSink(), HttpSink(), SmtpSink()
    file, seen = tmp_path / "told", tmp_path / "seen"
    with beside(hook, inner, mail), ThreadPoolExecutor(1) as pool:
        settings = {
            "allowedNetworks": ["127.0.0.1/32"], "smtpHost": "127.0.0.1", "smtpPort": mail.port,
            "smtpTls": "None", "mailFrom": "fairlead@example.com", "mailDomains": ["example.com"],
        }  # fmt: skip
        (tmp_path / "settings.yaml").write_text(json.dumps({"notices": settings}))
        up = ("--listen", "127.0.0.1:0", "--settings", "settings.yaml")
        shell.up(*up)
        try:
            data = {"slack": f"http://127.0.0.1:{hook.port}/services/T0KEN", "signing-key": "k3y"}
            encoded = {key: base64.b64encode(each.encode()).decode() for key, each in data.items()}
            shell.create(SECRETS, {"metadata": {"name": "fairlead-notify"}, "data": encoded})
            command = f"command:/bin/sh -c 'cat > {file}'"
            pool.submit(_touch_once_asked, seen, hook)
            shell.run(
                "run", "--name", "train", "--no-restart",
                "--notify", "start,fail:slack+secret:slack",
                "--notify", "end:ada@example.com", "--notify", f"end:{command}",
                "--notify", f"end:http://127.0.0.2:{inner.port}/metadata",
                "--", "sh", "-c", f"until [ -e {seen} ]; do sleep 0.1; done; exit 3", code=None,
            )  # fmt: skip
            expected = [
                ("Start", "Delivered"), ("Fail", "Delivered"), ("End", "Delivered"),
                ("End", "Delivered"), ("End", "Refused"),
            ]  # fmt: skip
            eventually(lambda: notices(shell, "train"), expected)
            (first, headers, body), (_, _, last) = hook.requests
            assert first == "POST /services/T0KEN HTTP/1.1"
            assert "has started" in json.loads(body)["text"]
            assert "has failed: ExitCode" in json.loads(last)["text"]
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            digest = base64.b64encode(hmac.new(b"k3y", signed, hashlib.sha256).digest()).decode()
            assert headers["webhook-signature"] == f"v1,{digest}"
            assert "Job default/train has ended: Failed" in mail.mails[0][2]
            assert json.loads(file.read_text())["job"]["name"] == "train"
            assert inner.requests == []
            # The server ends in a try, and again before it could know: it is made again.
            hook.delay_seconds = 30.0
            shell.run("run", "--name", "late", "--notify", "end:secret:slack", "--", "true")
            eventually(lambda: len(hook.requests), 3)
            crash(shell)
            hook.delay_seconds = 0.0
            shell.up(*up)
            assert notices(shell, "late") == [("End", "Sending")]
            log = "".join(each.read_text() for each in shell.data.glob("*.log"))
            assert "T0KEN" not in log
            assert "T0KEN" not in json.dumps(shell.job("late"))
        finally:
            shell.down()
            kill(processes_of(shell.data))


def test_mistakes_and_targets_that_are_not_served_are_refused_with_what_to_write(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    shell.up("--listen", "127.0.0.1:0")
    try:
        for given, words in (
            ("ended:ada@example.com", "'ended' must be start, end, fail, preempt or idle"),
            ("end:ftp://example.com", "must be a URL, a mail address, secret:KEY or command:LINE"),
            ("end:https://u:p@example.com/", "must name no user"),
            ("end:ada@example.com", "this cluster sends no mail"),
        ):
            failed = shell.run("run", "--notify", given, "--", "true", code=None)
            assert failed.code != 0
            assert words in failed.err
        refused = shell.run("run", "--array", "0-3", "--notify", "end", "--", "true", code=None)
        assert "--notify is for one job, and --array makes many" in refused.err
        script = tmp_path / "job.sh"
        script.write_text(
            "#!/bin/sh\n#SBATCH --mail-type=END,TIME_LIMIT\n#SBATCH --mail-user=ada@example.com\n"
            "true\n"
        )
        noted = shell.run("submit", str(script))
        assert "--mail-type=TIME_LIMIT has no effect" in noted.err
        assert "--mail-type has no effect: this cluster sends no mail" in noted.err
    finally:
        shell.down()
        kill(processes_of(shell.data))
