"""A machine whose agent applies a profile, with a kubelet, a containerd and GRUB.

Its programs are stand-ins: a mkconfig that sources the settings as Debian's does and writes a menu,
a containerd that merges imported files as 1.x or as 2.x does, and what starts it again.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.node.host_tree import BOOT, HostTree, Looks, changed, named

from fairlead.api.cluster.node_report import Action, TuningMode
from fairlead.api.values.times import format_time
from fairlead.node.repairs import REQUEST_VERSION, RepairRequest, Repairs, encode_request
from fairlead.node.reports.state import KeptRepair, open_state
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.sources.tuning import TuningMemory, restart_setter
from fairlead.node.tuning import TuningFinding
from fairlead.node.tuning.drop_ins import containerd, kernel, kubelet
from fairlead.runtime.clock import Clock

DIRECTORY = "/etc/kubelet.d"
IMPORTED = "/etc/containerd/conf.d"
IMAGES = "io.containerd.cri.v1.images"
CONFIG = "serializeImagePulls: false\nmaxParallelImagePulls: 5\nauthentication: {x: 1}\n"
MAIN = f"""version = 3
imports = ["{IMPORTED}/*.toml"]
[plugins."{IMAGES}"]
snapshotter = "mine"
"""
MENU = "boot/grub/grub.cfg"
_MKCONFIG = """#!/bin/sh
# Sources /etc/default/grub and then each of /etc/default/grub.d/*.cfg
set -e
cd "$(dirname "$0")/../host"
GRUB_CMDLINE_LINUX=
. ./etc/default/grub
for x in ./etc/default/grub.d/*.cfg; do if [ -e "$x" ]; then . "$x"; fi; done
[ ! -e broken ] || { echo "sh: a syntax error" >&2; exit 1; }
{
    echo "set timeout=5"
    echo "  set lang=${LANG%%.*}"
    for kernel in 6.1 5.10; do
        echo "menuentry 'Linux $kernel' {"
        printf '\\tlinux\\t/vmlinuz-%s root=/dev/vda ro %s %s\\n' \\
            "$kernel" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"
        echo "}"
        echo "menuentry 'Linux $kernel (recovery mode)' {"
        printf '\\tlinux\\t/vmlinuz-%s root=/dev/vda ro single\\n' "$kernel"
        echo "}"
    done
} > "$2"
"""
_CONTAINERD = """#!PYTHON
import glob, json, sys, tomllib
flag, file, *rest = sys.argv[1:]
assert (flag, rest) == ("--config", ["config", "dump"]), sys.argv
def load(path):
    with open(path, "rb") as opened:
        return tomllib.load(opened)
def merge(to, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(to.get(key), dict):
            merge(to[key], value)
        else:
            to[key] = value
made = {"version": 0, "plugins": {"IMAGES": {"max_concurrent_downloads": 3, "snapshotter": "its",
        "image_pull_progress_timeout": "5m0s", "use_local_image_pull": False}}}
default = json.loads(json.dumps(made))
main = load(file)
if main.get("version") == 2:  # moved, as 2.x does
    main["version"] = 3
    main["plugins"] = {"IMAGES": main.get("plugins", {}).get("io.containerd.grpc.v1.cri", {})}
merge(made, main)
for pattern in main.get("imports", []):
    for path in sorted(glob.glob(pattern)):
        more = load(path)
        if "SECTIONS":
            for name, table in more.get("plugins", {}).items():
                made["plugins"][name] = default["plugins"][name] | table
        else:
            merge(made, more)
found = made["plugins"]["IMAGES"]["max_concurrent_downloads"]
if not isinstance(found, int):
    sys.exit("containerd: Can't convert it to int")
def shown(value):
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
print("version =", made["version"])
for name, table in made["plugins"].items():
    print(f"[plugins.{json.dumps(name)}]")
    for key, value in table.items():
        print(key, "=", shown(value))
"""


def line(name: str, value: str, *, kind: str = "KubeletConfig", **more: str) -> str:
    rows = {"kind": kind, "name": name, "value": f"'{value}'", "reason": "r", "source": "s"}
    return "- " + ", ".join(f"{key}: {text}" for key, text in (rows | more).items()).join("{}")


def profile_of(*lines: str) -> str:
    return "\n".join(("name: tested", "lines:", *lines)) if lines else "name: tested"


PROFILE = profile_of(
    line("registryPullQPS", "0"), line("imageMaximumGCAge", "48h"),
    line("maxParallelImagePulls", "9"), line("serializeImagePulls", "false"),
    line("readOnlyPort", "10255"),
)  # fmt: skip


@dataclass
class Node:
    """A machine with a kubelet, an agent that applies a profile, and its repairs."""

    folder: Path
    settings: AgentSettings = field(init=False)
    tree: HostTree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = HostTree(self.folder / "host")
        self.profile.write_text(PROFILE)
        (self.tree.root / "etc/kubelet.d").mkdir(parents=True, exist_ok=True)
        (self.folder / "pods").write_text('{"items": []}')
        self.bin.mkdir()
        self.program(
            "reboot", f"#!/bin/sh\ncat {self.file} > {self.folder}/at-reboot 2>&1; exit 0\n"
        )
        settings = changed(
            AgentSettings(), "tuning", profile=str(self.profile), mode=TuningMode.APPLY,
            record=str(self.folder / "record"), kubelet_directory=DIRECTORY,
        )  # fmt: skip
        self.settings = changed(
            settings, "repairs", reboots=True, requests=str(self.folder / "requests"),
            pods=str(self.folder / "pods"), reboot_command=(str(self.bin / "reboot"),),
        )  # fmt: skip
        self.kubelet()

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.yaml"

    @property
    def file(self) -> Path:
        return self.tree.root / "etc/kubelet.d" / kubelet.NAME

    @property
    def grub_file(self) -> Path:
        return self.tree.root / "etc/default/grub.d" / kernel.NAME

    @property
    def containerd_file(self) -> Path:
        return self.tree.root / "etc/containerd/conf.d" / containerd.NAME

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def kubelet(self, *flags: str, began: float = 10.0, config: str = CONFIG) -> None:
        """Start the kubelet, so long after the machine."""
        flags = ("--config=/k.yaml", *(flags or (f"--config-dir={DIRECTORY}",)))
        self._runs("kubelet", 77, began)
        self.tree.write("proc/77/cmdline", "\0".join(("/usr/bin/kubelet", *flags, "")))
        self.tree.write("k.yaml", config)

    def no_kubelet(self) -> None:
        self.tree.write("sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs", "")

    def grub(self, settings: str = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"') -> None:
        """Give the machine GRUB, with a menu, and have the agent set arguments of the kernel."""
        self.program("grub-mkconfig", _MKCONFIG)
        self.tree.write("etc/default/grub", settings)
        self.tree.write("etc/default/grub.d/50-image.cfg", ":")
        self.tree.write(MENU, "")
        self.update_grub()
        self.tree.write("proc/cmdline", self.boot_line())
        self.settings = changed(
            self.settings, "tuning", kernel_arguments=True, kubelet_directory=""
        )

    def update_grub(self) -> None:
        command = [self.bin / "grub-mkconfig", "-o", self.tree.root / MENU]
        subprocess.run(command, check=True, env={"LANG": "de_DE.UTF-8", "PATH": "/usr/bin:/bin"})

    def boot_line(self) -> str:
        """Return the arguments of the first entry of the menu."""
        lines = (self.tree.root / MENU).read_text().splitlines()
        return next(each.split(maxsplit=2)[2] for each in lines if each.startswith("\tlinux"))

    def starts_again(self, boot_id: str) -> None:
        self.tree.boots(boot_id, 900)
        self.tree.write("proc/cmdline", self.boot_line())

    def containerd(self, *, main: str = MAIN, replaces_sections: bool = False) -> None:
        """Give the machine a containerd that imports files, and have the agent set it."""
        text = _CONTAINERD.replace("#!PYTHON", f"#!{sys.executable}").replace("IMAGES", IMAGES)
        if not replaces_sections:
            text = text.replace('if "SECTIONS"', "if 0")
        self.program("containerd", text)
        self.tree.write("etc/containerd/config.toml", main)
        (self.tree.root / "etc/containerd/conf.d").mkdir(exist_ok=True)
        self.containerd_runs(10.0)
        self.starts_containerd()
        self.settings = changed(
            self.settings, "tuning", containerd_directory=IMPORTED, kubelet_directory="",
            containerd_restart_command=("start",),
        )  # fmt: skip

    def starts_containerd(self, *, fails_while: str = "never there") -> None:
        """Have containerd start again at this uptime, but while a text is in its drop-in."""
        stat = f"81 (containerd) S {'0 ' * 18}{self.tree.uptime * 100:.0f} 0"
        self.program(
            "start",
            f"#!/bin/sh\necho start >> {self.folder}/starts\n"
            f"if grep -q '{fails_while}' {self.containerd_file} 2>/dev/null; then\n"
            "  echo 'Job for containerd.service failed'; exit 1\nfi\n"
            f"echo '{stat}' > {self.tree.root}/proc/81/stat\n",
        )

    def containerd_runs(self, began: float) -> None:
        self._runs("containerd", 81, began)
        self.tree.write("sys/fs/cgroup/system.slice/containerd.service/cgroup.procs", "40\n81")
        self.tree.write("proc/40/comm", "containerd-shim")

    def no_containerd(self) -> None:
        self.tree.write("sys/fs/cgroup/system.slice/containerd.service/cgroup.procs", "40")

    def _runs(self, name: str, number: int, began: float) -> None:
        self.tree.write(f"sys/fs/cgroup/system.slice/{name}.service/cgroup.procs", str(number))
        stat = f"{number} (a ) b) S {'0 ' * 18}{began * 100:.0f} 0"
        self.tree.write(f"proc/{number}/stat", stat)
        self.tree.write(f"proc/{number}/comm", name)

    def host(self) -> Host:
        return replace(self.tree.host(), programs=self.bin)

    def looks(self) -> Looks:
        return Looks(self.tree, "tuning", settings=self.settings, host=self.host())

    def faults(self) -> list[str]:
        return [check for check, *_ in named(self.looks().look())]

    def differences(self) -> dict[str, TuningFinding]:
        """Return what a look finds to differ, by setting."""
        looks = self.looks()
        looks.look()
        memory = looks.watch.memory("tuning")
        assert isinstance(memory, TuningMemory)
        return {each.setting: each for each in memory.differences}

    def unreadable(self) -> str:
        """Return what a look could not find out."""
        looks = self.looks()
        looks.look()
        return "; ".join(looks.health().unreadable)

    def set(self, *asked: str) -> tuple[str, str]:
        return restart_setter(self.host(), self.settings)(self.request(*asked))

    def request(
        self, *components: str, boot_id: str = BOOT, takes_back: bool = False
    ) -> RepairRequest:
        until = format_time(self.tree.now() + 600)
        return RepairRequest(
            REQUEST_VERSION, f"r{self.tree.uptime}", Action.REBOOT, boot_id, until, components,
            takes_back,
        )  # fmt: skip

    def is_asked(self, *components: str, boot_id: str = BOOT) -> KeptRepair:
        """Return the answer to the request for a reboot."""
        request = self.request(*components, boot_id=boot_id)
        Path(self.settings.repairs.requests).write_bytes(encode_request(request))
        latest = self.carry_out()
        assert latest is not None
        return latest

    def carry_out(self, clock: Clock | None = None) -> KeptRepair | None:
        """Take the agent's step with requests; return the answer to the latest one."""
        host = self.host() if clock is None else replace(self.host(), clock=clock)
        state = open_state(self.folder / "state")
        setter = restart_setter(host, self.settings)
        repairs = Repairs(host, self.settings.repairs, state, before_reboot=setter)
        asyncio.run(repairs.step())
        state.close()
        return repairs.latest

    @property
    def body(self) -> dict[str, Any]:
        head, body = self.file.read_text().split("\n", 1)
        assert head.startswith("# ")
        return json.loads(body)


_WRITERS = (
    "node/files.py",
    *(f"drop_ins/{name}.py" for name in ("own_file", "kubelet", "kernel", "grub", "containerd")),
)


def at_each_line(call: Callable[[], object], seen: Callable[[], None]) -> int:
    """Call, and `seen` at each line of the modules that write drop-ins; return how many lines."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(_WRITERS):
            return None
        lines += event == "line"
        seen()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    seen()
    return lines
