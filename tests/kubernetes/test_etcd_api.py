"""etcd's own API on a real etcd that asks for client certificates."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import (
    PATIENCE_SECONDS,
    ControlPlane,
    NoControlPlane,
    find_binaries,
    free_ports,
)
from tests.kubernetes.operating import http_client, install_kinds, until
from tests.kubernetes.own_plane import WITHOUT
from tests.kubernetes.prometheus_server import prometheus, scrape_of
from tests.kubernetes.replicas import ARGUMENTS, replicas
from tools.cluster.credentials import issue, make_authority

from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReportStatus
from fairlead.api.resources import CLUSTER_REPORTS
from fairlead.api.status import NotFound
from fairlead.runtime.outside.fetch import Web, WebAccess

pytestmark = pytest.mark.kubernetes
CHECKS = ("ETCD-08", "ETCD-08B", "ETCD-10*", "ETCD-11B", "ETCD-09?", "ETCD-04", "ETCD-05")


@dataclass(frozen=True)
class Etcd:
    """A running member, and how a client is let in."""

    url: str
    access: WebAccess
    pid: int

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        answer = Web(self.access).fetch(f"{self.url}/v3/{path}", json.dumps(body).encode())
        return json.loads(answer)

    def state(self) -> tuple[list[str], list[str]]:
        """Its alarms and its members; etcd gives its alarms in no order."""
        alarms = self.call("maintenance/alarm", action="GET").get("alarms", [])
        members = self.call("cluster/member/list")["members"]
        alarms, members = (sorted(map(json.dumps, each)) for each in (alarms, members))
        return alarms, members

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--etcd", self.url, "--etcd-ca-file", self.access.ca_file,
                "--etcd-cert-file", self.access.cert_file,
                "--etcd-key-file", self.access.key_file)  # fmt: skip


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            condition()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    try:
        binary = find_binaries() / "etcd"
    except NoControlPlane as reason:
        pytest.skip(f"{WITHOUT}: {reason}")
    authority = make_authority(tmp_path)
    for name in ("server", "client"):
        issue(authority, tmp_path / name, {NameOID.COMMON_NAME: name}, ["127.0.0.1"])
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    access = WebAccess(
        ca_file=str(tmp_path / "ca.crt"), cert_file=str(tmp_path / "client.crt"),
        key_file=str(tmp_path / "client.key"),
    )  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "--name=one", f"--data-dir={tmp_path / 'data'}",
             f"--listen-client-urls=https://{client}",
             f"--advertise-client-urls=https://{client}", f"--listen-peer-urls=http://{peer}",
             f"--initial-advertise-peer-urls=http://{peer}",
             f"--initial-cluster=one=http://{peer}", "--client-cert-auth",
             f"--trusted-ca-file={access.ca_file}", f"--cert-file={tmp_path / 'server.crt'}",
             f"--key-file={tmp_path / 'server.key'}"], stderr=log, stdout=log,
        )  # fmt: skip
    made = Etcd(f"https://{client}", access, process.pid)
    try:
        _until(lambda: made.call("maintenance/status"))
        yield made
    finally:
        process.kill()
        process.wait()


def test_alarms_and_members_of_a_real_etcd_are_found_and_nothing_is_changed(
    etcd: Etcd, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    only = [word for each in CHECKS for word in ("--only", each)]
    command = ("doctor", "--offline", "--interval", "0", "--nodes", "10", "-o", "json", *only)

    def run(*more: str) -> dict[str, Any]:
        return json.loads(shell.run(*command, *more, code=None).out)

    healthy = run(*etcd.flags)
    assert [each["id"] for each in healthy["findings"]] == ["ETCD-10"], "one member"
    assert healthy["unknown"] == []

    member = etcd.call("maintenance/status")["header"]["member_id"]
    etcd.call("cluster/member/add", peerURLs=["http://127.0.0.1:1"], isLearner=True)
    for alarm in ("NOSPACE", "CORRUPT"):
        etcd.call("maintenance/alarm", action="ACTIVATE", memberID=member, alarm=alarm)
    before = etcd.state()
    index = etcd.call("maintenance/status")["raftIndex"]
    bad = run(*etcd.flags)
    found = {each["id"]: each["subject"] for each in bad["findings"]}
    assert {"ETCD-08", "ETCD-08B", "ETCD-10", "ETCD-10C"} == set(found)
    assert found["ETCD-08B"] == "one"
    assert before == etcd.state()
    # A read of the members is linearizable: etcd may log an entry for it, and none is a change.
    assert int(etcd.call("maintenance/status")["raftIndex"]) - int(index) <= 5

    stranger = run("--etcd", etcd.url, "--etcd-ca-file", etcd.access.ca_file)
    assert {"ETCD-08", "ETCD-08B", "ETCD-04"} <= {each["id"] for each in stranger["unknown"]}


async def test_the_controller_asks_with_the_certificate_of_a_mounted_secret(
    etcd: Etcd, plane: ControlPlane, tmp_path: Path
) -> None:
    client = http_client(plane)
    await install_kinds(client)
    credentials = tmp_path / "credentials"
    (credentials / "etcd").mkdir(parents=True)
    settings = tmp_path / "settings.yaml"
    member = etcd.call("maintenance/status")["header"]["member_id"]
    etcd.call("maintenance/alarm", action="ACTIVATE", memberID=member, alarm="CORRUPT")

    async def status() -> ClusterReportStatus:
        try:
            return (await client.get(CLUSTER_REPORTS, REPORT_NAME)).status
        except NotFound:
            return ClusterReportStatus()

    async def sees_nothing() -> bool:
        return "ETCD-08B" in (await status()).unknown

    async def sees_the_alarm() -> bool:
        return "ETCD-08B" in {each.check for each in (await status()).findings}

    with prometheus(tmp_path / "data", [scrape_of(plane)]) as server:
        settings.write_text(json.dumps({"doctor": {
            "intervalSeconds": 60, "etcd": [etcd.url], "prometheus": server.url,
            "credentialsDirectory": str(credentials),
        }}))  # fmt: skip
        async with replicas(plane, arguments=(*ARGUMENTS, "--settings", str(settings))) as world:
            await world.start()
            await until(sees_nothing)
            assert "MET-03" not in (await status()).unknown, "Prometheus needs no credentials"
            for name, file in (("ca.crt", etcd.access.ca_file), ("tls.crt", etcd.access.cert_file),
                               ("tls.key", etcd.access.key_file)):  # fmt: skip
                shutil.copy(file, credentials / "etcd" / name)
            await until(sees_the_alarm)
    await client.delete(CLUSTER_REPORTS, REPORT_NAME)
    await client.close()
