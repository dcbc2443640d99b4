"""What a cluster needs of this machine, and which part is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.cluster.layout import cache_directory

BUILD = Path(__file__).resolve().parents[1] / "kubernetes" / "build.sh"
#: Command -> the Debian package that has it.
COMMANDS = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "nft": "nftables",
    "ip": "iproute2", "conntrack": "conntrack", "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount",
}  # fmt: skip
PLUGINS = Path("/usr/lib/cni")
PLUGINS_PACKAGE = "containernetworking-plugins"


class CannotRunError(Exception):
    """This machine cannot run a cluster; the message says in one line what is missing."""


def missing() -> str | None:
    """Return in one line what keeps this machine from running a cluster, None when nothing does."""
    return next(_reasons(), None)


def _reasons() -> Iterator[str]:
    if os.uname().sysname != "Linux":
        yield "not Linux"
    if os.geteuid() != 0:
        yield "not root: nodes are namespaces and control groups of this machine"
    packages = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if not (PLUGINS / "bridge").exists():
        packages.add(PLUGINS_PACKAGE)
    if packages:
        names = " ".join(sorted(packages))
        yield f"Debian packages missing: {names} (make cluster-packages)"
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        yield "the kernel's module br_netfilter is missing: modprobe br_netfilter"
    if shutil.which("go") is None and not binaries_are_built():
        yield "no Go, which builds Kubernetes here: install Go 1.26"
    yield from _refused()


def _refused() -> Iterator[str]:
    """Try what a container without the needed rights is refused."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        for name in ("lower", "upper", "work", "whole"):
            Path(scratch, name).mkdir()
        script = (
            f"cd {scratch} && mount --make-rprivate / && "
            "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work whole"
        )
        tried = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "sh", "-c", script],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if tried.returncode:
        said = " ".join(tried.stderr.split()) or f"exit code {tried.returncode}"
        yield f"namespaces or overlay mounts are refused here ({said})"
    if not any(os.access(root, os.W_OK) for root in cgroup_roots()):
        yield "/sys/fs/cgroup cannot be written"


def cgroup_roots() -> list[Path]:
    """Return the mount point of each hierarchy of control groups: one with version 2."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top]
    return sorted(path for path in top.glob("*/") if not path.is_symlink())


def binaries() -> Path:
    """Return where the binaries are, or would be; needs Go, unless they are given."""
    found = subprocess.run([BUILD, "--where"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise CannotRunError(found.stderr.strip())
    return Path(found.stdout.strip())


def binaries_are_built() -> bool:
    """Whether `build.sh --nodes` has nothing to do."""
    try:
        directory = binaries()
    except CannotRunError:
        return False
    needed = (
        "kube-apiserver", "kubelet", "kube-proxy", "pause", "coredns", "crane", "helm", "kubectl",
        "local-path-provisioner", "dra-driver",
    )  # fmt: skip
    return all((directory / name).exists() for name in needed)


def build() -> Path:
    """Build the binaries that are missing, with its progress on standard error; return where."""
    done = subprocess.run([BUILD, "--nodes"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CannotRunError("Kubernetes could not be built here, see above")
    return Path(done.stdout.strip())
