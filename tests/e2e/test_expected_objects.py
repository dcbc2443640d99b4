"""What a client that knows clusters expects to find on one that `fairlead up` has started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL"),
]
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"},
    "spec": {"containers": [{"name": "main", "image": "none"}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root: Path = tmp_path_factory.mktemp("expected")
    shell = Shell(root)
    (root / "work.sh").write_text("true\n")
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()


def _kubectl(shell: Shell, *arguments: str, stdin: object = None) -> str:
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "--kubeconfig", str(shell.data / "kubeconfig"), *arguments],
        env=shell.environment, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS, input="" if stdin is None else json.dumps(stdin),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_the_service_of_the_api_server_leads_to_it(shell: Shell) -> None:
    address = "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"
    eventually(
        lambda: (
            _kubectl(shell, "get", "service", "kubernetes", "-o", address)
            in (shell.data / "kubeconfig").read_text()
        ),
        True,
    )
    port = address.rpartition(":")[2]
    assert port
    [row] = _rows(_kubectl(shell, "get", "endpointslices"))
    assert row[:2] == ["kubernetes", "IPv4"]
    assert row[3] == "127.0.0.1"


def test_every_namespace_has_its_account_and_the_authority_of_the_server(shell: Shell) -> None:
    _kubectl(shell, "create", "namespace", "team")
    for namespace in ("default", "team", "kube-system"):

        def found(kind: str, of: str = namespace) -> list[str]:
            return [row[0] for row in _rows(_kubectl(shell, "get", kind, "-n", of))]

        eventually(lambda: found("serviceaccounts"), ["default"])
        eventually(lambda: "kube-root-ca.crt" in found("configmaps"), True)
    data = "jsonpath={.data.ca\\.crt}"
    authority = _kubectl(shell, "get", "configmap", "kube-root-ca.crt", "-n", "team", "-o", data)
    server = _kubectl(shell, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    (shell.root / "ca.crt").write_text(authority)
    other = ("--certificate-authority", str(shell.root / "ca.crt"), "--server", server)
    token = _kubectl(shell, "config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}")
    assert KUBECTL is not None
    answer = subprocess.run(
        [KUBECTL, "--kubeconfig", "/dev/null", *other, "--token", token, "get", "--raw", "/readyz"],
        env=shell.environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    assert answer.stdout == "ok"


def test_every_node_has_a_lease(shell: Shell) -> None:
    def holders() -> list[str]:
        return sorted(row[1] for row in _rows(_kubectl(shell, "get", "leases", "-A")) if
                      row[0] == "kube-node-lease")  # fmt: skip

    nodes = sorted(row[0] for row in _rows(_kubectl(shell, "get", "nodes")))
    assert len(nodes) == 3
    eventually(holders, nodes)


def test_a_plain_pod_and_a_waiting_job_say_what_they_wait_for(shell: Shell) -> None:
    _kubectl(shell, "create", "-f", "-", stdin=POD)
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "first", "--nodes", "2",
              "--gpus", "8")  # fmt: skip
    shell.run("wait", "first", "--for", "started", "--timeout", "100s")
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "second", "--gpus", "8")

    def events(reason: str) -> str:
        return _kubectl(shell, "get", "events", "--field-selector", f"reason={reason}")

    eventually(lambda: "schedules plain pods" in events("FailedScheduling"), True)
    eventually(lambda: "needs 8 GPUs" in events("InsufficientCapacity"), True)
    shell.run("cancel", "first", "second")
    shell.run("wait", "first", "--timeout", "100s", code=None)

    def columns(name: str) -> list[str]:
        return next(row for row in _rows(_kubectl(shell, "get", "fj")) if row[0] == name)[1:5]

    # no member of an ended job runs: the column is empty
    eventually(lambda: columns("first"), ["Cancelled", "2", "1", "Cancelled"])
    eventually(lambda: columns("second"), ["Cancelled", "1", "1", "Cancelled"])
