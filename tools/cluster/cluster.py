"""A cluster's life: started on this machine, used, taken down without a trace.

What takes it down (`take_down`) works from the record in the directory and the names derived from
the directory alone, so it clears up after a command that was killed at any line as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import daemons, network, processes
from tools.cluster.archive import Image, write_archive, write_layer
from tools.cluster.credentials import write_credentials
from tools.cluster.layout import (
    CONTROL_PLANE,
    NODE_DIRECTORIES,
    NODE_RUN_DIRECTORIES,
    NODES_MAX,
    Layout,
    Record,
    cache_directory,
)
from tools.cluster.machine import CannotRunError, build, cgroup_roots, missing
from tools.cluster.objects import bootstrap_objects

READY_SECONDS_MAX = 180.0
#: A cluster ends in this time, or it is said what does not end.
END_SECONDS_MAX = 30.0
LOCK_SECONDS_MAX = 3.0
#: Removes files, then the record of a cluster, then its directory where one is named.
REMOVE = """
record=$1 directory=$2; shift 2
rm -rf -- "$@" && rm -f -- "$record" && { [ -z "$directory" ] || rmdir -- "$directory"; }
"""
POLL_SECONDS = 0.2
NODE = Path(__file__).with_name("node.py")
#: In front of a command: it does not outlive this process, however that ends.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
Say = Callable[[str], None]


class FailedError(Exception):
    """The cluster did not come up, or the directory is not a cluster's; the message says why."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster; its commands are those of its own version."""

    layout: Layout
    binaries: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints; FailedError if it fails."""
        command = [
            *ENDS_WITH_US, str(self.binaries / "kubectl"), f"--kubeconfig={self.layout.kubeconfig}",
            f"--cache-dir={self.layout.directory / 'kubectl'}", *arguments,
        ]  # fmt: skip
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FailedError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def init(self, machine: str) -> int:
        """Return the first process of a node or the control plane, as this machine counts it."""
        started = processes.recorded(pid_file(self.layout, machine))
        first = None if started is None else processes.child(started)
        if first is None:
            raise FailedError(f"{machine} does not run")
        return first

    def run_in(self, machine: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the files, the network and the host name of a node."""
        enter = ["nsenter", f"--target={self.init(machine)}", "--mount", "--net", "--uts", "--"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def daemon(self, machine: str, name: str) -> int:
        """Return the process of a daemon, as this machine counts it; FailedError if it is down."""
        for pid in sorted(processes.members(self.layout.namespace(machine))):
            try:
                program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
            except OSError:
                continue
            if program.rpartition(b"/")[2] == name.encode():
                return pid
        raise FailedError(f"{name} does not run on {machine}")

    def push_images(self, archive: Path) -> dict[str, str]:
        """Push all images of an archive to the cluster's registry; return each one's digest.

        Nodes that have other images of these names pull them again for their next containers.
        """
        pushed: dict[str, str] = {}
        with tempfile.TemporaryDirectory(dir=self.layout.directory, prefix="push-") as scratch:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            index = Path(scratch, "index.json")
            whole = json.loads(index.read_text())
            for manifest in whole["manifests"]:
                index.write_text(json.dumps({**whole, "manifests": [manifest]}))
                name = manifest["annotations"]["io.containerd.image.name"]
                # Nodes ask the registry for docker.io/library/NAME as library/NAME.
                target = f"{self.layout.registry}/{name.partition('/')[2]}"
                crane = [str(self.binaries / "crane"), "push", "--insecure", scratch, target]
                done = subprocess.run(
                    [*ENDS_WITH_US, *crane], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise FailedError(f"{name} cannot be pushed: {done.stderr.strip()}")
                pushed[name] = manifest["digest"]
        for node in self.layout.nodes:
            self._forget_others(node, pushed)
        return pushed

    def _forget_others(self, node: str, pushed: Mapping[str, str]) -> None:
        """Remove images of other digests from a node; containers that run keep their files."""
        ctr = ("ctr", "--namespace=k8s.io", "images")
        listed = self.run_in(node, *ctr, "list").stdout.splitlines()[1:]
        there = {line.split()[0]: line.split()[2] for line in listed}
        old = [name for name, digest in pushed.items() if there.get(name, digest) != digest]
        if old and (done := self.run_in(node, *ctr, "remove", *old)).returncode:
            raise FailedError(f"{node} keeps its images: {done.stderr.strip()}")

    def start_node(self, machine: str) -> None:
        """Switch on a node that is off."""
        start(self.layout, machine)

    def set_link(self, node: str, state: str) -> None:
        """Set the wire between a node and all others `up` or `down`; the node itself goes on."""
        network.ip("-n", self.layout.namespace(CONTROL_PLANE), "link", "set", node, state)

    def pull_plug(self, node: str) -> None:
        """Kill the first process of a node: all that it runs ends with it, at once."""
        deadline = time.monotonic() + END_SECONDS_MAX
        processes.end([pid_file(self.layout, node)], [self.layout.namespace(node)], deadline, print)


def pid_file(layout: Layout, machine: str) -> Path:
    """Return where the process of a node or the control plane is recorded."""
    return layout.home(machine) / "pid"


def start(layout: Layout, machine: str) -> None:
    """Start the first process of a node, or of the control plane."""
    home = layout.home(machine)
    command = [
        "nsenter", f"--net={processes.NETNS / layout.namespace(machine)}",
        "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
        shutil.which("python3") or "python3", str(NODE), str(home),
    ]  # fmt: skip
    processes.start(pid_file(layout, machine), command, home / "init.log")


@contextmanager
def lock(path: Path) -> Generator[int]:
    """Hold a directory's lock, and yield its descriptor; FailedError when another command keeps it.

    The child of a command that was killed holds it until it has become its own program.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    try:
        while not _is_locked(descriptor):
            if time.monotonic() >= deadline:
                raise FailedError(f"another command is at work on {path}")
            time.sleep(POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find(directory: Path) -> Layout | None:
    """Return the cluster of a directory, also one that does not run (any more)."""
    record = Record.read(directory)
    return None if record is None else Layout(directory, record.slot, record.size)


def runs(layout: Layout) -> bool:
    """Whether control plane and nodes have their first processes."""
    return all(processes.recorded(pid_file(layout, machine)) for machine in layout.machines)


def bring_up(directory: Path, size: int, say: Say) -> Cluster:
    """Start a cluster of `size` nodes with its state in `directory`, and wait for its nodes.

    A cluster that runs there is kept when it has this size; anything else of it is taken down
    first. CannotRunError says what this machine lacks; FailedError what went wrong, after all that
    was started has been taken down again, but for the logs in the directory.
    """
    if not 1 <= size <= NODES_MAX:
        raise FailedError(f"NODES must be 1 to {NODES_MAX}, not {size}")
    if reason := missing():
        raise CannotRunError(reason)
    binaries = build()
    directory = directory.resolve()
    foreign = [path for path in directory.glob("*") if path != Record.new(directory)]
    if foreign and Record.read(directory) is None:
        raise FailedError(f"{directory} is not empty and no cluster: choose another CLUSTER")
    directory.mkdir(parents=True, exist_ok=True)
    with lock(directory) as descriptor:
        found = find(directory)
        if found is not None and found.size == size and runs(found):
            say(f"the cluster in {directory} runs already")
            return Cluster(found, binaries)
        if found is not None:
            _end(found, time.monotonic() + END_SECONDS_MAX, say)
            removing = _remove(found, descriptor, with_directory=False)
            if not _has_removed(removing, found, time.monotonic() + READY_SECONDS_MAX, say):
                raise FailedError(f"the files in {directory} are still being removed")
        try:
            return _bring_up(directory, size, binaries, say)
        except BaseException:
            found = find(directory)
            if found is not None:
                _end(found, time.monotonic() + END_SECONDS_MAX, say)
            raise


def _bring_up(directory: Path, size: int, binaries: Path, say: Say) -> Cluster:
    with _slot(directory, size) as layout:
        network.connect(layout)
    write_credentials(layout)
    cluster = Cluster(layout, binaries)
    daemons.write_control_plane(layout, binaries)
    start(layout, CONTROL_PLANE)
    for node in layout.nodes:
        daemons.write_node(layout, node, binaries)
        _make_cgroups(layout, node)
        start(layout, node)
    say(f"control plane and {size} nodes started")
    until("the API server answers", lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok")
    cluster.kubectl(
        "apply", "--server-side", "-f", "-", stdin=json.dumps(bootstrap_objects(layout))
    )
    until("containerd answers", lambda: _containerd_answers(cluster))
    until("the registry answers", lambda: bool(cluster.push_images(pause_archive(binaries))))
    until("all nodes are ready", lambda: ready_nodes(cluster) == set(layout.nodes))
    until("the namespace has its service account", lambda: bool(
        cluster.kubectl("get", "serviceaccount", "default", "-o", "name")))  # fmt: skip
    return cluster


@contextmanager
def _slot(directory: Path, size: int) -> Generator[Layout]:
    """Yield the layout with free addresses, while no other cluster of this machine looks for some.

    The record is written and mount points are made before the caller makes anything.
    """
    cache_directory().mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            with lock(cache_directory()):
                slot = network.free_slot()
                wanted = (*NODE_DIRECTORIES, *NODE_RUN_DIRECTORIES, str(processes.NETNS))
                made = [
                    str(path)
                    for name in wanted
                    for path in (*reversed(Path(name).parents), Path(name))
                    if not path.exists()
                ]
                Record(slot, size, tuple(dict.fromkeys(made))).write(directory)
                for name in (*NODE_DIRECTORIES, *NODE_RUN_DIRECTORIES):
                    Path(name).mkdir(parents=True, exist_ok=True)
                yield Layout(directory, slot, size)
                return
        except FailedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def until(what: str, holds: Callable[[], bool]) -> None:
    """Return once it holds; FailedError when it does not in time."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    why = "it did not"
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except FailedError as error:
            why = str(error)
        time.sleep(POLL_SECONDS)
    raise FailedError(f"waited {READY_SECONDS_MAX:.0f} s until {what}: {why}")


def _containerd_answers(cluster: Cluster) -> bool:
    return all(
        cluster.run_in(node, "ctr", "version").returncode == 0 for node in cluster.layout.nodes
    )


def ready_nodes(cluster: Cluster) -> set[str]:
    """Return the nodes whose kubelets say that they are ready."""
    items = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    return {
        item["metadata"]["name"]
        for item in items
        for condition in item["status"].get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    }


def pause_archive(binaries: Path) -> Path:
    """Return the archive of the image of each pod's first container; made once."""
    target = binaries / "pause.tar"
    if not target.exists():
        root = binaries / "pause-root"
        root.mkdir(exist_ok=True)
        shutil.copy2(binaries / "pause", root / "pause")
        layer = binaries / "pause-layer.tar"
        write_layer(layer, root)
        shutil.rmtree(root)
        write_archive(target, [Image(daemons.PAUSE_IMAGE, (layer,), {"Entrypoint": ["/pause"]})])
    return target


def _make_cgroups(layout: Layout, node: str) -> None:
    for root in cgroup_roots():
        path = root / layout.cgroup / node
        path.mkdir(parents=True, exist_ok=True)
        if (root / "cgroup.controllers").exists():  # version 2: hand the controllers down
            controllers = (root / "cgroup.controllers").read_text().split()
            for parent in (root, root / layout.cgroup):
                (parent / "cgroup.subtree_control").write_text(
                    " ".join(f"+{controller}" for controller in controllers)
                )


# --- the end


def take_down(directory: Path, say: Say = print) -> bool:
    """End the cluster of a directory and remove all of it; False when there is none.

    It may be repeated, and clears up after a start that was killed. It takes END_SECONDS_MAX at
    most: `say` is told what it waits for, and TimeoutError or FailedError what did not end. Files
    that are not removed by then are removed by a process that goes on.
    """
    directory, deadline = directory.resolve(), time.monotonic() + END_SECONDS_MAX
    if not directory.is_dir():
        return False
    with lock(directory) as descriptor:
        layout = find(directory)
        if layout is None:
            return False
        _end(layout, deadline, say)
        removing = _remove(layout, descriptor, with_directory=True)
        if not _has_removed(removing, layout, deadline, say):
            say(f"process {removing.pid} goes on to remove {directory}")
    return True


def _remove(layout: Layout, descriptor: int, *, with_directory: bool) -> subprocess.Popen[bytes]:
    """Begin to remove the files of a cluster that has ended, the record last.

    The process holds the lock of `descriptor` until it has: the images of a node are tens of
    thousands of files.
    """
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [point for point in mounts if Path(point).is_relative_to(layout.directory)]
    if inside:
        raise FailedError(f"mounts are left below {layout.directory}: {', '.join(inside)}")
    record = Record.path(layout.directory)
    files = [str(path) for path in layout.directory.iterdir() if path != record]
    itself = str(layout.directory) if with_directory else ""
    return subprocess.Popen(
        ["sh", "-c", REMOVE, "sh", str(record), itself, *files],
        stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(descriptor,),
    )  # fmt: skip


def _has_removed(
    removing: subprocess.Popen[bytes], layout: Layout, deadline: float, say: Say
) -> bool:
    """Return whether the process has removed all by the deadline; FailedError if it cannot."""
    due = time.monotonic() + processes.SAY_SECONDS
    while removing.poll() is None:
        now = time.monotonic()
        if now >= deadline:
            return False
        if now >= due:
            say(f"removes the files in {layout.directory}")
            due = now + processes.SAY_SECONDS
        time.sleep(POLL_SECONDS / 10)
    if removing.returncode:
        raise FailedError(f"{layout.directory} cannot be removed")
    return True


def _end(layout: Layout, deadline: float, say: Say) -> None:
    """End all processes, and remove what is outside the directory."""
    records = [pid_file(layout, machine) for machine in layout.machines]
    processes.end(records, [layout.namespace(m) for m in layout.machines], deadline, say)
    network.disconnect(layout)
    _remove_cgroups(layout, deadline, say)
    _remove_mount_points(layout)


def _remove_cgroups(layout: Layout, deadline: float, say: Say) -> None:
    """Remove the control groups, once the kernel has let their last processes go."""
    due = time.monotonic() + processes.SAY_SECONDS
    for root in cgroup_roots():
        top = root / layout.cgroup
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:
                    continue
            if not top.exists():
                break
            now = time.monotonic()
            if now >= deadline:
                raise FailedError(f"{top} cannot be removed")
            if now >= due:
                say(f"waits for the control groups in {top}")
                due = now + processes.SAY_SECONDS
            time.sleep(POLL_SECONDS)


def _remove_mount_points(layout: Layout) -> None:
    """Remove the directories that were made for the nodes, unless something is in them now."""
    record = Record.read(layout.directory)
    for name in reversed(record.made if record else ()):
        path = Path(name)
        if not path.is_dir() or any(path.iterdir()):
            continue
        if path == processes.NETNS:  # `ip netns add` has mounted it on itself
            subprocess.run(["umount", name], capture_output=True, check=False)
        path.rmdir()
