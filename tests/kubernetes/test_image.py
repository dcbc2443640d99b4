"""What the Dockerfile puts into the image, without an engine: the lock file into a clean
environment, the wheel beside it, and `fairlead controller` started as the Deployment starts it.

Where the test is run by root it is also closed in as the pod is: user 65532 without capabilities, a
root that cannot be written, an empty /tmp, and the service account's token where kubelets mount it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ROOT, ControlPlane, free_ports
from tests.kubernetes.operating import http_client
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_install import run_cli

from fairlead.api.names import OWN_NAMESPACE
from fairlead.install.manifests import NAME, Install, manifests

pytestmark = pytest.mark.kubernetes
MOUNTED_SETTINGS = "/etc/fairlead/settings.yaml"
PIP_SECONDS_MAX = 300.0
#: $1 holds the token, $2 is the user; the command of the pod follows.
CLOSED_IN = """
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/secrets/kubernetes.io
cp -r "$1" /run/secrets/kubernetes.io/serviceaccount
user=$2
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /tmp
shift 2
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all "$@"
"""
MAY_WRITE = """
import os, sys
for path in sys.argv[1:]:
    try:
        open(os.path.join(path, "x"), "w").close()
        print(path)
    except OSError:
        pass
"""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may read, and that is not below /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def base_interpreter() -> str:
    """Return an interpreter that nobody's account may run; else the one of this test."""
    own = str(Path(sys.executable).resolve())
    if os.getuid() != 0:
        return own
    for candidate in (own, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if candidate is None:
            continue
        try:
            code = "import sys; sys.exit(sys.version_info < (3, 11))"
            done = subprocess.run([candidate, "-c", code], user=user_id(), group=user_id(),
                                  extra_groups=[], check=False)  # fmt: skip
        except PermissionError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip("no interpreter that an unprivileged user may run")


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, timeout=PIP_SECONDS_MAX, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode and "Failed to establish a new connection" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def build(place: Path) -> Path:
    """Do what the first stage of the Dockerfile does; return the environment."""
    environment = place / "fairlead"
    subprocess.run([base_interpreter(), "-m", "venv", "--without-pip", environment], check=True)
    python = str(environment / "bin" / "python")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "wheel"), ".")
    (wheel,) = (place / "wheel").glob("fairlead-*.whl")
    pip("--python", python, "install", "--require-hashes", "--no-deps", "--only-binary=:all:",
        "-r", "requirements/run.lock")  # fmt: skip
    pip("--python", python, "install", "--no-deps", "--no-index", str(wheel))
    pip("--python", python, "check")
    return environment


async def request_token(cluster: ControlPlane) -> str:
    client = http_client(cluster)
    path = f"/api/v1/namespaces/{OWN_NAMESPACE}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    try:
        answer = await client.request("POST", path, body=msgspec.json.encode(body))
    finally:
        await client.close()
    return msgspec.json.decode(answer)["status"]["token"]


def write_account(cluster: ControlPlane, directory: Path) -> None:
    """Write what a kubelet mounts: token, authority and namespace."""
    directory.mkdir()
    (directory / "token").write_text(asyncio.run(request_token(cluster)))
    (directory / "ca.crt").write_bytes(cluster.ca_file.read_bytes())
    (directory / "namespace").write_text(OWN_NAMESPACE)


def write_settings(directory: Path) -> Path:
    """Write what a kubelet mounts of the ConfigMap with the controllers' settings."""
    (settings,) = [each for each in manifests(Install()) if each["kind"] == "ConfigMap"]
    path = directory / Path(MOUNTED_SETTINGS).name
    path.write_text(settings["data"][path.name])
    return path


def pod_spec() -> dict[str, Any]:
    """Return the spec of the pod, as the Deployment has it."""
    spec: dict[str, Any] = manifests(Install())[-1]["spec"]["template"]["spec"]
    return spec


@cache
def user_id() -> int:
    """Return the user that the pod runs as."""
    return int(pod_spec()["securityContext"]["runAsUser"])


def closed_in(account: Path, command: Sequence[str]) -> list[str]:
    start = ["unshare", "--mount", "sh", "-euc", CLOSED_IN, "sh"]
    return [*start, str(account), str(user_id()), *command]


def is_able_to_close_in() -> bool:
    tools = ("unshare", "setpriv")
    if os.getuid() != 0 or any(shutil.which(tool) is None for tool in tools):
        return False
    done = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return done.returncode == 0


def await_leader(port: int, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                text = answer.read().decode()
                if "held by pod-1_" in text and "scheduler" in text:
                    return text
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"it does not lead:\n{log.read_text()}")


def test_the_locked_environment_runs_the_controller_as_the_pod_does(
    cluster: ControlPlane, place: Path
) -> None:
    environment = build(place)
    assert run_cli(cluster, "install").returncode == 0
    account = place / "account"
    write_account(cluster, account)
    container = pod_spec()["containers"][0]
    (port,) = free_ports(1)
    arguments = [each.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for each in container["args"]]
    settings = write_settings(place)
    arguments = [each.replace(MOUNTED_SETTINGS, str(settings)) for each in arguments]
    assert str(settings) in " ".join(arguments)
    command = [str(environment / "bin" / "fairlead"), *arguments]
    host = urllib.parse.urlsplit(cluster.url)
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "POD_NAME": "pod-1",
        "POD_NAMESPACE": OWN_NAMESPACE,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if is_able_to_close_in():
        variables |= {
            "KUBERNETES_SERVICE_HOST": str(host.hostname),
            "KUBERNETES_SERVICE_PORT": str(host.port),
        }
        places = ["/", "/tmp", "/run", str(place), str(environment), "/root", "/var/tmp"]
        probe = [str(environment / "bin" / "python"), "-c", MAY_WRITE, *places]
        said = subprocess.run(closed_in(account, probe), capture_output=True, text=True, check=True)
        assert said.stdout.split() == ["/tmp"], "it is not closed in"
        command = closed_in(account, command)
    else:
        kubeconfig = cluster.kubeconfig(token="account")
        token = (account / "token").read_text()
        kubeconfig.write_text(kubeconfig.read_text().replace('"account"', f'"{token}"'))
        variables["KUBECONFIG"] = str(kubeconfig)
    log = place / "controller.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables, cwd="/")
    try:
        text = await_leader(port, process, log)
        assert text.endswith("ok\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
        assert '"Stopped"' in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
