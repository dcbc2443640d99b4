"""Credential plugins: what they are told, what they may answer, and when they are run again."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.status import Unauthorized
from fairlead.kube import exec_auth
from fairlead.kube.blocking import BlockingClient
from fairlead.kube.exec_auth import (
    Credential,
    PluginCredentials,
    PluginError,
    run_plugin,
    run_plugin_beside,
)
from fairlead.kube.kubeconfig import Connection, Interactive, KubeconfigError, load_connection
from fairlead.kube.transport import Transport
from fairlead.sim.loop import run
from fairlead.webhook import certificates
from fairlead.webhook.certificates import Pair

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def connection(
    directory: Path, script: str, *, version: str = V1, cluster: dict[str, Any] | None = None,
    **more: Any,
) -> Connection:  # fmt: skip
    """Write a plugin beside a kubeconfig that names it, and read that."""
    program = directory / "plugin"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    values = {"apiVersion": version, "command": "./plugin", "interactiveMode": "Never", **more}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://host:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"exec": values}}],
    }
    path = directory / "config"
    path.write_text(json.dumps(config))
    return load_connection(path=path)


def answer(version: str = V1, kind: str = "ExecCredential", **status: Any) -> str:
    text = json.dumps({"apiVersion": version, "kind": kind, "status": status})
    return f"printf '%s' '{text}'"


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_token_with_its_expiry_is_taken(tmp_path: Path, version: str) -> None:
    script = answer(version, token="t0", expirationTimestamp="2026-01-01T00:00:00Z")
    credential = run_plugin(connection(tmp_path, script, version=version))
    assert credential == Credential("t0", expires_at=1_767_225_600.0)
    assert credential.is_good(1_767_225_600.0 - 60)
    assert not credential.is_good(1_767_225_600.0 - 5), "it would expire on its way"


def counting(directory: Path) -> str:
    """Return the script of a plugin that prints t1, then t2 ..."""
    count = directory / "count"
    text = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t%s"}})
    return f"echo x >> {count}\nprintf '{text}' $(wc -l < {count})"


def test_the_command_line_runs_a_plugin_once(tmp_path: Path) -> None:
    client = BlockingClient(connection(tmp_path, counting(tmp_path)))
    assert [client.token(), client.token()] == ["t1", "t1"]


async def test_a_plugin_is_run_again_when_its_token_is_refused(tmp_path: Path) -> None:
    valid, asked = b"Bearer t1", 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        status = b"200 OK" if valid in await reader.readuntil(b"\r\n\r\n") else b"401 No"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % status)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        transport = Transport(replace(connection(tmp_path, counting(tmp_path)), server=url))
        assert await transport.request("GET", "/a") == b"{}"
        valid = b"Bearer t2"
        assert await transport.request("GET", "/a") == b"{}"
        valid, asked = b"Bearer none", 0
        with pytest.raises(Unauthorized):
            await transport.request("GET", "/a")
        assert asked == 2
        await transport.close()


async def test_a_stream_goes_on_after_its_client_certificate_was_replaced(tmp_path: Path) -> None:
    def make(host: str) -> tuple[bytes, Pair]:
        return certificates.make([host], now=time.time(), times=certificates.Times())

    refusals, goes_on = iter((b"401 No", b"200 OK")), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 %b\r\nConnection: close\r\n\r\n%b"
        if b"GET /stream" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(head % (b"200 OK", b"one"))
            await goes_on.wait()
            writer.write(b"two")
        else:
            writer.write(head % (next(refusals), b"{}"))
        writer.close()

    authority, pair = make("api.test")
    (tmp_path / "pair").write_bytes(pair.certificate + pair.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "pair")
    for number in (1, 2):
        _, own = make("client")
        status = {"clientCertificateData": own.certificate.decode(),
                  "clientKeyData": own.key.decode()}  # fmt: skip
        found = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
        (tmp_path / f"answer-{number}").write_text(json.dumps(found))
    script = f"echo x >> {tmp_path}/count\ncat {tmp_path}/answer-$(wc -l < {tmp_path}/count)"
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listening:
        transport = Transport(replace(
            connection(tmp_path, script), certificate_authority=authority, server_name="api.test",
            server=f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}",
        ))  # fmt: skip
        chunks = transport.stream("GET", "/stream")
        assert await anext(chunks) == b"one"
        assert await transport.request("GET", "/a") == b"{}"
        goes_on.set()
        assert await anext(chunks) == b"two"
        await chunks.aclose()
        await transport.close()


def test_a_certificate_with_its_key_is_taken(tmp_path: Path) -> None:
    script = answer(clientCertificateData="CERT", clientKeyData="KEY")
    credential = run_plugin(connection(tmp_path, script))
    assert (credential.certificate, credential.key, credential.token) == ("CERT", "KEY", "")
    assert "KEY" not in repr(credential)


def test_the_plugin_is_told_what_it_asked_for(tmp_path: Path) -> None:
    """Arguments, variables, and the cluster with what its extension holds for plugins."""
    script = f'printf "%s|%s|%s" "$*" "$REGION" "$KUBERNETES_EXEC_INFO" > told\n{answer(token="t")}'
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    asked = connection(
        tmp_path, f"cd {tmp_path}\n{script}", cluster={"extensions": [extension]},
        args=["--cluster", "a b"], env=[{"name": "REGION", "value": "eu"}],
        provideClusterInfo=True,
    )  # fmt: skip
    run_plugin(asked)
    arguments, region, info = (tmp_path / "told").read_text().split("|")
    assert (arguments, region) == ("--cluster a b", "eu")
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {"server": "https://host:6443", "config": {"audience": "x"}},
        },
    }


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo expired, please log in >&2; exit 3", "ended with 3: expired, please log in; run `"),
        ("echo hello", "did not print an ExecCredential as JSON"),
        (answer(V1BETA1, token="t"), f"want an ExecCredential of {V1}, got 'ExecCredential' of"),
        (answer(kind="Token", token="t"), "got 'Token' of"),
        (answer(), "neither a token nor a client certificate"),
        (answer(clientKeyData="K"), "go together"),
        (answer(token="t", expirationTimestamp="soon"), "'soon' is no RFC 3339 time"),
    ],
)
def test_what_is_no_credential_is_refused_with_the_place_and_the_cause(
    tmp_path: Path, script: str, said: str
) -> None:
    with pytest.raises(PluginError) as caught:
        run_plugin(connection(tmp_path, script))
    assert f"{tmp_path}/config: users[0].user.exec: " in str(caught.value)
    assert said in str(caught.value)


def test_a_plugin_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    asked = connection(tmp_path, "", command="no-such-login", installHint="Get it from your admin.")
    with pytest.raises(PluginError, match=r"not in PATH; the kubeconfig says: Get it from"):
        run_plugin(asked)


def test_a_plugin_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_auth, "RUN_SECONDS_MAX", 0.05)
    with pytest.raises(PluginError, match="did not answer within"):
        run_plugin(connection(tmp_path, "exec sleep 30"))


def test_a_plugin_that_must_talk_to_a_person_is_not_run_without_one(tmp_path: Path) -> None:
    asked = connection(tmp_path, "touch ran", interactiveMode="Always")
    assert asked.exec_plugin is not None
    assert asked.exec_plugin.interactive is Interactive.ALWAYS
    with pytest.raises(PluginError, match="no terminal here"):
        run_plugin(asked)


def test_a_version_that_we_do_not_speak_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"exec\.apiVersion: want .*v1 or .*v1beta1, got"):
        connection(tmp_path, "", version="client.authentication.k8s.io/v1alpha1")


# When it is run again


class Plugin:
    """Answers t1, t2, ... after a second, each good for a minute."""

    def __init__(self) -> None:
        self.clock_start = 1000.0
        self.runs = 0
        self.fails = False

    def now(self) -> float:
        return self.clock_start + asyncio.get_running_loop().time()

    async def run(self, _connection: Connection) -> Credential:
        self.runs += 1
        number = self.runs
        await asyncio.sleep(1)
        if self.fails:
            raise PluginError("log in again")
        return Credential(f"t{number}", expires_at=self.now() + 60)


async def test_without_holding_up_the_loop_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = await run_plugin_beside(connection(tmp_path, answer(token="t")))
    assert credential == Credential("t")
    with pytest.raises(PluginError, match="ended with 3: log in"):
        await run_plugin_beside(connection(tmp_path, "echo log in >&2; exit 3"))
    with pytest.raises(PluginError, match="not in PATH"):
        await run_plugin_beside(connection(tmp_path, "", command="no-such-login"))
    monkeypatch.setattr(exec_auth, "RUN_SECONDS_MAX", 0.05)
    with pytest.raises(PluginError, match="did not answer within"):
        await run_plugin_beside(connection(tmp_path, "exec sleep 30"))


def test_many_that_ask_at_a_time_share_one_run_and_expiry_leads_to_the_next() -> None:
    async def main() -> None:
        plugin = Plugin()
        credentials = PluginCredentials(Connection("https://h", "test"), plugin.now, run=plugin.run)
        first = await asyncio.gather(*(credentials.get() for _ in range(50)))
        assert {c.token for c in first} == {"t1"}
        await asyncio.sleep(45)
        assert (await credentials.get()).token == "t1"
        await asyncio.sleep(10)
        again = await asyncio.gather(*(credentials.get() for _ in range(50)))
        assert {c.token for c in again} == {"t2"}
        assert plugin.runs == 2

    run(main())


def test_a_refused_credential_is_replaced_once_for_all_that_were_refused() -> None:
    async def main() -> None:
        plugin = Plugin()
        credentials = PluginCredentials(Connection("https://h", "test"), plugin.now, run=plugin.run)
        old = await credentials.get()
        fresh = await asyncio.gather(*(credentials.get(refused=old) for _ in range(20)))
        assert {c.token for c in fresh} == {"t2"}
        assert plugin.runs == 2

    run(main())


def test_a_failed_run_is_not_remembered() -> None:
    async def main() -> None:
        plugin = Plugin()
        credentials = PluginCredentials(Connection("https://h", "test"), plugin.now, run=plugin.run)
        plugin.fails = True
        with pytest.raises(PluginError):
            await credentials.get()
        plugin.fails = False
        assert (await credentials.get()).token == "t2"

    run(main())
