"""A real control plane for tests: etcd, kube-apiserver and the four controllers whose work the
embedded cluster does itself (garbage collector, namespaces, disruption budgets, quotas), on
loopback, with their own certificates.

Nobody else acts: no scheduler, no kubelet, no service accounts are made. Requests without a token
are let in to the health and version paths only, as the embedded server does.

The binaries come from `make kubernetes` (or KUBEBUILDER_ASSETS). Users are tokens in a file:
`admin` is a member of system:masters and only prepares the ground; tests act as `tester`, an
ordinary user with all rights by RBAC, who is therefore subject to priority and fairness as any
controller is.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tools" / "kubernetes" / "build.sh"
#: What another process does not do within this time it does not do. It is no measure of how long
#: that takes: on a busy machine it takes many times as long as on an idle one.
PATIENCE_SECONDS = 300.0
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "pki")
CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,disruption-controller,"
    "resourcequota-controller"
)
ANONYMOUS = """apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /healthz
  - path: /livez
  - path: /readyz
  - path: /version
"""


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class NoControlPlane(Exception):
    """There is nothing to run; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane. `processes` are (name, pid), `commands` (name, command)."""

    url: str
    directory: Path
    binaries: Path
    token: str
    admin_token: str
    processes: tuple[tuple[str, int], ...]
    etcd_url: str
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def kill(self, name: str) -> None:
        """Kill a process with signal 9 and return once its ports are free."""
        self.signal(name, signal.SIGKILL)
        # Left to be reaped by whoever started it.
        os.waitid(os.P_PID, dict(self.processes)[name], os.WEXITED | os.WNOWAIT)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a process a signal."""
        os.kill(dict(self.processes)[name], number)

    def revive(self, stack: ExitStack, name: str) -> ControlPlane:
        """Start a killed process again, on its port and data, until the end of `stack`.

        Returns the plane with the new process, to kill that one.
        """
        process = _start(stack, self.directory, list(dict(self.commands)[name]))
        alive = tuple((each, pid) for each, pid in self.processes if each != name)
        return replace(self, processes=(*alive, (name, process.pid)))

    @property
    def ca_file(self) -> Path:
        """The authority that signed the server's certificate."""
        return self.directory / "ca.crt"

    def compact(self) -> None:
        """Let etcd forget all but the latest version of everything."""
        versions = _etcd(self.etcd_url, "range", {"key": "AA=="})
        revision = versions["header"]["revision"]
        _etcd(self.etcd_url, "compaction", {"revision": revision, "physical": True})

    def stored(self, prefix: str) -> dict[str, bytes]:
        """Return what etcd holds below a prefix of keys, which ends with a slash."""
        first, last = (
            base64.b64encode(key.encode()).decode() for key in (prefix, f"{prefix[:-1]}0")
        )
        found = _etcd(self.etcd_url, "range", {"key": first, "range_end": last}).get("kvs", ())
        return {
            base64.b64decode(each["key"]).decode(): base64.b64decode(each["value"])
            for each in found
        }

    def kubeconfig(self, *, token: str | None = None) -> Path:
        """Write and return a kubeconfig for the tester (or another token)."""
        path = self.directory / f"kubeconfig-{token or self.token}"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path


def find_binaries() -> Path:
    """Return the directory of the binaries; NoControlPlane when they are not built."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        return Path(assets)
    if shutil.which("go") is None:
        raise NoControlPlane("no Go here, and KUBEBUILDER_ASSETS is not set")
    found = subprocess.run(
        [BUILD, "--where"], capture_output=True, text=True, check=True, cwd=BUILD.parent
    )
    directory = Path(found.stdout.strip())
    missing = [name for name in NEEDED if not (directory / name).exists()]
    if missing:
        raise NoControlPlane(f"{', '.join(missing)} not built: make kubernetes")
    return directory


def _start(stack: ExitStack, directory: Path, command: list[str]) -> subprocess.Popen[bytes]:
    name = Path(command[0]).name
    log = stack.enter_context((directory / f"{name}.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
    stack.callback(_stop, process)
    return process


def _command(process: subprocess.Popen[bytes]) -> tuple[str, ...]:
    assert isinstance(process.args, list)
    return tuple(map(str, process.args))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # a graceful end takes seconds, and nothing of this cluster is kept
    process.wait()


def _start_etcd(
    stack: ExitStack, directory: Path, binaries: Path, more: Sequence[str]
) -> tuple[str, subprocess.Popen[bytes]]:
    client_port, peer_port = free_ports(2)
    client_url, peer_url = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
    etcd = _start(stack, directory, [
        str(binaries / "etcd"), "--name=test", f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client_url}", f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=test={peer_url}", "--log-level=warn", *more,
    ])  # fmt: skip
    return client_url, etcd


def _gates(gates: Sequence[str]) -> list[str]:
    return [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []


def _start_controllers(
    stack: ExitStack, plane: ControlPlane, gates: Sequence[str], more: Sequence[str]
) -> int:
    kubeconfig = plane.kubeconfig(token=plane.admin_token)
    process = _start(stack, plane.directory, [
        str(plane.binaries / "kube-controller-manager"), f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join((CONTROLLERS, *more))}",
        "--leader-elect=false", "--secure-port=0",
        # The API server may count a claim before its watch has shown the class; else 5 minutes.
        "--resource-quota-sync-period=2s",
        "--kube-api-qps=1000", "--kube-api-burst=1000", *_gates(gates),
    ])  # fmt: skip
    return process.pid


def _start_scheduler(
    stack: ExitStack, plane: ControlPlane, gates: Sequence[str], plugins: Mapping[str, object]
) -> int:
    kubeconfig = str(plane.kubeconfig(token=plane.admin_token))
    profile = {"pluginConfig": [{"name": name, "args": args} for name, args in plugins.items()]}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000},
        "profiles": [profile],
    }
    path = plane.directory / "kube-scheduler.json"
    path.write_text(json.dumps(config))
    command = [str(plane.binaries / "kube-scheduler"), f"--config={path}", "--secure-port=0"]
    return _start(stack, plane.directory, [*command, *_gates(gates)]).pid


def _call(url: str, token: str, context: ssl.SSLContext, body: object = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method="POST" if data else "GET")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, context=context, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _etcd(url: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call etcd through its gateway for JSON (etcd documentation, "gRPC gateway")."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v3/kv/{verb}", data=data, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


def _await_answer(
    plane: ControlPlane, context: ssl.SSLContext, server: subprocess.Popen[bytes], path: str,
    token: str,
) -> None:  # fmt: skip
    """Return once the server answers the path to the owner of the token."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            tail = (plane.directory / "kube-apiserver.log").read_text()[-2000:]
            raise RuntimeError(f"kube-apiserver ended with {server.returncode}:\n{tail}")
        try:
            if _call(f"{plane.url}{path}", token, context)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"kube-apiserver did not answer {path} within {PATIENCE_SECONDS:.0f} s")


def _give_rights(plane: ControlPlane, context: ssl.SSLContext) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "testers"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "testers"}
        ],
    }  # fmt: skip
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    status, text = _call(plane.url + path, plane.admin_token, context, binding)
    if status != 201:
        raise RuntimeError(f"the tester could not be given its rights: {status} {text!r}")


def audit_flags(log: Path) -> tuple[str, ...]:
    """Return the flags of kube-apiserver for a log of the metadata of all requests."""
    policy = log.with_name("audit-policy.json")
    policy.write_text(json.dumps(AUDIT_POLICY))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={log}")


@contextmanager
def control_plane(
    directory: Path,
    *,
    flags: Sequence[str] = (),
    scheduler: bool = False,
    plugins: Mapping[str, object] = MappingProxyType({}),
    gates: Sequence[str] = (),
    controllers: Sequence[str] = (),
    etcd_flags: Sequence[str] = (),
) -> Generator[ControlPlane]:
    """Run etcd and kube-apiserver with their state in `directory`, until the end of the block.

    `flags` are further ones for kube-apiserver; `scheduler` runs kube-scheduler as well, with
    its client's limits raised, so that they are not what it waits for, and `plugins` are the
    arguments of its plugins; `gates` are features that are turned on in all of them, `controllers`
    and `etcd_flags` further ones of kube-controller-manager and etcd.
    """
    binaries = find_binaries()
    pki = binaries / "pki"
    subprocess.run([pki, directory], check=True)
    (api_port,) = free_ports(1)
    tokens = directory / "tokens.csv"
    tokens.write_text(
        'admin-token,admin,admin,"system:masters"\ntester-token,tester,tester,"testers"\n'
        'mallory-token,mallory,mallory,""\n'
        'kubelet-token,system:node:v00000,system:node:v00000,"system:nodes"\n'
    )
    authentication = directory / "authentication.yaml"
    authentication.write_text(ANONYMOUS)
    with ExitStack() as stack:
        etcd_url, etcd = _start_etcd(stack, directory, binaries, etcd_flags)
        server = _start(stack, directory, [
            str(binaries / "kube-apiserver"),
            f"--etcd-servers={etcd_url}", f"--secure-port={api_port}",
            "--bind-address=127.0.0.1", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--tls-cert-file={directory / 'apiserver.crt'}",
            f"--tls-private-key-file={directory / 'apiserver.key'}",
            f"--service-account-key-file={directory / 'sa.pub'}",
            f"--service-account-signing-key-file={directory / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
            f"--authentication-config={authentication}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--allow-privileged=true", *_gates(gates), *flags,
        ])  # fmt: skip
        plane = ControlPlane(
            url=f"https://127.0.0.1:{api_port}",
            directory=directory,
            binaries=binaries,
            token="tester-token",
            admin_token="admin-token",
            processes=(("etcd", etcd.pid), ("kube-apiserver", server.pid)),
            etcd_url=etcd_url,
            commands=(("etcd", _command(etcd)), ("kube-apiserver", _command(server))),
        )
        context = ssl.create_default_context(cafile=str(plane.ca_file))
        _await_answer(plane, context, server, "/readyz", plane.admin_token)
        _give_rights(plane, context)
        # Rights count once the server's own watch has shown them to it.
        _await_answer(plane, context, server, "/api/v1/nodes", plane.token)
        manager = _start_controllers(stack, plane, gates, controllers)
        processes = (*plane.processes, ("kube-controller-manager", manager))
        if scheduler:
            processes = (
                *processes,
                ("kube-scheduler", _start_scheduler(stack, plane, gates, plugins)),
            )
        yield replace(plane, processes=processes)
