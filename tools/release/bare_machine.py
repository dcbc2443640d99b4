"""Installs a wheel on machines that have nothing of this project, and types README's first page.

    python -m tools.release.bare_machine dist/fairlead-1.0.0-py3-none-any.whl [--suite trixie]

A machine is a fresh Debian in a directory: the smallest one, and Python. Its own pip fetches what
the lock files name, which becomes an index on its loopback. From then on it has no network but
that. A user without rights installs the wheel from the index, and types the commands of README's
"A cluster on your laptop" as they are written. It needs root, mmdebstrap and some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.cluster.images import EXAMPLES, LEFT_OUT, locked, mirror

ROOT = Path(__file__).resolve().parents[2]
#: Debian 12 has Python 3.11, Debian 13 has 3.13, and what becomes Debian 14 has 3.14.
SUITES = ("bookworm", "trixie", "forky")
#: A list of packages is signed for a week, and a mirror may be further behind.
_STALE_LISTS = '--aptopt=Acquire::Check-Valid-Until "false"'
_PASSED_ON = re.compile(r"(?i)^(https?_proxy|no_proxy|pip_(index_url|extra_index_url|.*timeout))$")
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: $1 the directory, $2 the step. The second form has a loopback and no other network.
_ONLINE = """
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
exec chroot "$1" sh -euc "$2"
"""
_OFFLINE = """
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t sysfs sysfs "$1/sys"
ip link set lo up
exec chroot --userspec=reader:reader "$1" sh -euc "$2"
"""
#: A directory for each package, listed by a web server, is an index (PEP 503).
_INDEX = r"""
useradd --create-home reader
chown -R reader:reader /home/reader
python3 -m venv /opt/pip
/opt/pip/bin/pip download -q --no-deps --require-hashes --only-binary :all: -d /srv/all -r /srv/lock
cp /srv/*.whl /srv/all/
cd /srv/all
for file in *; do
  name=$(echo "${file%%-*}" | tr 'A-Z_.' 'a-z--')
  mkdir -p "/srv/simple/$name"
  mv "$file" "/srv/simple/$name/"
done
rm -r /opt/pip
"""
_USE = """
cd /home/reader
python3 -m http.server --bind 127.0.0.1 --directory /srv 8099 >/dev/null 2>&1 &
index=$!
python3 -m venv .venv
for try in 1 2 3 4 5 6 7 8 9 10; do
  python3 -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:8099/simple/")' 2>&1 && break
  sleep 1
done
.venv/bin/pip install -q --disable-pip-version-check --index-url http://127.0.0.1:8099/simple/ \
  'fairlead[server,examples]'
kill $index
python3 --version
"""


class Failed(Exception):
    """A machine could not be made, or a step on it failed; the text has the end of its output."""


def commands(readme: str) -> list[str]:
    """Return the commands of README's first page, each without its comment."""
    page = r"^## A cluster on your laptop\n(?:(?!    ).*\n)*((?:    .*\n)+)"
    found = re.search(page, readme, re.MULTILINE)
    if found is None:
        raise Failed("README.md has no commands under '## A cluster on your laptop'")
    return [re.sub(r"  +#.*", "", line).strip() for line in found[1].splitlines()]


def check(output: str) -> None:
    """See in what the commands printed that the jobs ran to their end; Failed."""
    for what, pattern in (
        ("the trained network", r"^.*accuracy 0\.9\d+ on \d+ test digits"),
        ("the job that ended", r"^train-1\b.*\bSucceeded\b"),
    ):
        if not re.search(pattern, output, re.MULTILINE):
            raise Failed(f"{what} is not in the output:\n{output[-3000:]}")


def try_machine(wheel: Path, suite: str, kubectl: Path) -> str:
    """Return what a user of a fresh machine sees, from the index on; Failed."""
    with TemporaryDirectory(prefix="fairlead-bare-") as scratch:
        root = Path(scratch) / "root"
        _run([
            *_unshare(), "--mount-proc", "mmdebstrap", "--mode=root", "--variant=minbase",
            "--include=python3,python3-venv,ca-certificates", _STALE_LISTS,
            *(f"--dpkgopt=path-exclude={each}" for each in LEFT_OUT), suite, root, mirror(),
        ])  # fmt: skip
        service = root / "srv"
        dev = (ROOT / "requirements" / "dev.lock").read_text()
        run_lock = (ROOT / "requirements" / "run.lock").read_text()
        (service / "lock").write_text(run_lock + locked(dev, EXAMPLES))
        shutil.copy(wheel, service)
        shutil.copy(kubectl, root / "usr/local/bin/kubectl")
        shutil.copytree(ROOT / "examples", root / "home/reader/examples")
        if _CA_BUNDLE.exists():  # a machine behind a proxy may trust an authority of its own
            shutil.copy(_CA_BUNDLE, service / "ca.crt")
        _run([*_unshare(), "sh", "-euc", _ONLINE, "sh", root, _INDEX])
        typed = "\n".join(
            f"echo {shlex.quote(f'$ {each}')}\n{each}"
            for each in commands((ROOT / "README.md").read_text())
        )
        return _run([*_unshare(), "--net", "sh", "-euc", _OFFLINE, "sh", root, _USE + typed])


def _unshare() -> list[str]:
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]


def _run(command: Sequence[str | Path]) -> str:
    environment = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
    environment |= {"PATH": _PATH, "HOME": "/home/reader", "PIP_CERT": "/srv/ca.crt"}
    done = subprocess.run(
        list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"exit code {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def main() -> int:
    """Try a wheel on fresh machines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--suite", choices=SUITES, action="append", help="[default: each]")
    given = parser.parse_args()
    kubectl = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
    if os.geteuid() or shutil.which("mmdebstrap") is None or kubectl is None:
        print("needs root, mmdebstrap (make cluster-packages) and kubectl", file=sys.stderr)
        return 1
    try:
        for suite in given.suite or SUITES:
            output = try_machine(given.wheel, suite, Path(kubectl))
            print(f"=== {suite}\n{output}", flush=True)
            check(output)
    except (Failed, OSError) as error:
        print(f"not as README says: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
