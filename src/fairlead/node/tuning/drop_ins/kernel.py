"""The drop-in of the boot loader: arguments of the kernel, which count from its next start.

It is one file in the directory that GRUB's mkconfig reads after /etc/default/grub, which adds to
GRUB_CMDLINE_LINUX_DEFAULT: entries for recovery do not have these arguments (GRUB's manual, "Simple
configuration handling"), so a machine that does not start with them is started from one of those.

The file is written first, with the arguments that the menu has until now as its note, then the menu
is made. A process that is killed between the two leaves a menu that starts, and a file that differs
from it, which is what the next run puts right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.node.running.host import Host
from fairlead.node.tuning.boot_settings import GIVEN, NOT_SET, kernel_argument
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn, choose
from fairlead.node.tuning.drop_ins.grub import DIRECTORY, Grub, find_grub, make_menu, menu_has
from fairlead.node.tuning.drop_ins.own_file import OwnFile, OwnText
from fairlead.node.tuning.profile import LineKind, ReadyProfile

NAME = "99-fairlead-tuning.cfg"
_VARIABLE = "GRUB_CMDLINE_LINUX_DEFAULT"
_LINE = re.compile(rf'{_VARIABLE}="\${_VARIABLE} ([A-Za-z0-9_.,:=-]+(?: [A-Za-z0-9_.,:=-]+)*)"')
_CPUS = r"(?:(?:nohz|domain|managed_irq),)*[0-9]{1,5}(?:[-,][0-9]{1,5}){0,63}"
#: What a drop-in may give, and the values that it may have (the kernel's admin guide has all).
#: Nothing that opens the machine or lifts a mitigation, that names what it starts or where its root
#: is, that takes memory or drivers away from it: a machine that does not start takes a person.
ARGUMENTS: Mapping[str, str] = {
    "amd_iommu": "on|pgtbl_v2",
    "amd_pstate": "active|passive|guided",
    "clocksource": "tsc",
    "cpufreq.default_governor": "performance|schedutil|ondemand|powersave",
    "intel_idle.max_cstate": "[0-9]",
    "intel_iommu": "on|on,sm_on",
    "intel_pstate": "active|passive",
    "iommu": "pt",
    "iommu.passthrough": "1",
    "isolcpus": _CPUS,
    "modprobe.blacklist": "nouveau",
    "nmi_watchdog": "[01]",
    "nohz_full": _CPUS,
    "nosoftlockup": GIVEN,
    "nouveau.modeset": "0",
    "numa_balancing": "enable|disable",
    "nvme_core.default_ps_max_latency_us": "[0-9]{1,7}",
    "panic": "[0-9]{1,4}",
    "pci": "realloc|realloc=on|realloc=off|pcie_bus_perf|pcie_bus_safe",
    "pcie_aspm": "off",
    "preempt": "none|voluntary|full|lazy",
    "processor.max_cstate": "[0-9]",
    "psi": "[01]",
    "rcu_nocbs": _CPUS,
    "skew_tick": "[01]",
    "systemd.unified_cgroup_hierarchy": "1",
    "transparent_hugepage": "always|madvise|never",
    "tsc": "reliable|nowatchdog",
    "workqueue.default_affinity_scope": "cpu|smt|cache|numa|system",
}


def kernel_file(host: Host) -> OwnFile:
    """Return the file in the directory of GRUB's settings."""
    return OwnFile(host, DIRECTORY, NAME)


def kernel_drop_in(
    host: Host, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[DropIn, ChosenLines]:  # fmt: skip
    """Return how the drop-in is; Absent without a boot loader that reads it, OSError."""
    file = kernel_file(host)
    text, refused = file.read(), file.refused()
    has_started = text.boot != host.boot_id()
    booted = _words(text.body) if has_started else tuple(text.note.split())
    chosen = choose(
        profile, facts, LineKind.KERNEL_ARGUMENT, refusal=_refusal,
        there=lambda name: kernel_argument(host, name, without=booted),
        set_by=lambda name: (
            "" if kernel_argument(host, name, without=booted) == NOT_SET
            else "other settings of the boot loader give it"
        ),
    )  # fmt: skip
    wanted = _body(chosen.values)
    if not wanted and not text.is_there:
        return DropIn("", "", True, False, ()), chosen
    is_made = text.is_there and bool(text.body) and _is_made(host, find_grub(host), text)
    if not text.is_there:
        find_grub(host)
    is_refused = refused.is_there and refused.body == wanted
    is_loaded = not text.is_there or (has_started and is_made)
    why = (refused.note or "the machine did not start with it") if is_refused else ""
    return DropIn(wanted, text.body, is_loaded, is_refused, tuple(chosen.values), why), chosen


def set_kernel(host: Host, found: DropIn) -> None:
    """Make the file and the menu what they should be, or leave them as they are; OSError, Absent.

    What makes no menu is refused, so that no machine starts again and again for it.
    """
    file = kernel_file(host)
    text = file.read()
    if found.is_refused or not (found.wanted or text.is_there):
        return
    grub = find_grub(host)
    words, has = _words(found.wanted), _words(text.body)
    if found.wanted and found.wanted == text.body and _is_made(host, grub, text):
        return
    former = has if has and menu_has(host, grub.menu, has) else tuple(text.note.split())
    raw = file.raw()
    file.write(found.wanted, note=" ".join(former))
    try:
        make_menu(host, grub, words=words, former=former)
    except OSError as error:
        file.refuse(found.wanted, str(error))
        file.put_back(raw)
        raise
    if not found.wanted:
        file.put_back(None)


def remove_kernel(host: Host) -> bool:
    """Remove the file, what is refused, and the arguments from the menu; False: none was there.

    Absent, OSError.
    """
    file = kernel_file(host)
    if file.read().is_there:
        set_kernel(host, DropIn("", "", False, False, ()))
    elif not file.refused().is_there:
        return False
    file.remove()
    return True


def refuse_kernel(host: Host, why: str) -> None:
    """Give the menu the arguments that it had earlier, and keep the file as refused.

    Absent, OSError.
    """
    file = kernel_file(host)
    text, earlier = file.read(), file.earlier()
    if text.is_there:
        file.refuse(text.body, why)
        set_kernel(host, DropIn(earlier, text.body, False, False, ()))


def _is_made(host: Host, grub: Grub, text: OwnText) -> bool:
    return menu_has(host, grub.menu, _words(text.body))


def _refusal(name: str, value: str) -> str:
    pattern = ARGUMENTS.get(name)
    if pattern is None:
        return "no agent gives this argument"
    if re.fullmatch(pattern, value) is None:
        return f"no agent gives it the value {value}"
    return ""


def _body(values: Mapping[str, str]) -> str:
    words = [name if value == GIVEN else f"{name}={value}" for name, value in values.items()]
    return f'{_VARIABLE}="${_VARIABLE} {" ".join(words)}"' if words else ""


def _words(body: str) -> tuple[str, ...]:
    """Return the arguments of a body; () also for one that is not as the agent writes it."""
    found = _LINE.fullmatch(body)
    return tuple(found[1].split()) if found else ()
