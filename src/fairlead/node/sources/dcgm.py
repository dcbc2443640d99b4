"""What DCGM's exporter says of each GPU: what NVML would, where the agent has no driver, and Xids.

A cluster that has the exporter keeps it, and a pod, which has no NVML, has its checks by it. The
values are those of the driver, so they are judged as the driver's (`nvml.py`). What a counters file
leaves out, and what is blank, is not known.

The gauge of Xids is the last code and never falls (dcgm-exporter#500), and a second equal one does
not show in it (#190). So a change counts, not the value; where the exporter counts Xids in a window
(DCGM_EXP_XID_ERRORS_COUNT), its growth does. Some codes never come this way (DCGM#235): the
kernel's log has all of them.
"""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import replace

from fairlead.model.health.faults import (
    Action,
    FaultVerdict,
    Identity,
    Moment,
    Observation,
    Recovery,
    Severity,
    identity,
    observed,
)
from fairlead.node.exports import SAMPLES_MAX
from fairlead.node.running.host import Host, whole_number
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource
from fairlead.node.sources import nvml
from fairlead.node.sources.gpud import LoopbackPage
from fairlead.node.sources.nvml import GpuLook, NvmlLook, NvmlMemory
from fairlead.node.xids import XidTable
from fairlead.runtime.exported.metrics_page import BadPage, Labels, parse_page

SOURCE = "dcgm"
XID, LINKS = "dcgm-xid", "dcgm-nvlink"
#: The checks of the driver's values, under names of this source: both may be there.
_CHECKS = {
    nvml.RECOVERY: "dcgm-recovery", nvml.ROWS: "dcgm-rows", nvml.ECC: "dcgm-ecc",
    nvml.SLOWDOWN: "dcgm-slowdown", nvml.COUNT: "dcgm-count",
}  # fmt: skip
_PERIOD_SECONDS = 60
#: The page of 16 GPUs has 200 kB.
PAGE_BYTES_MAX = 4 << 20
GPUS_MAX = 64
CODES_MAX = 32
#: Names of fields, the newest first (DCGM 3 to 5).
_RECOVERY = ("DCGM_FI_DEV_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION")
_FAILED = ("DCGM_FI_DEV_ROW_REMAP_FAILURE",)
_PENDING = ("DCGM_FI_DEV_ROW_REMAP_PENDING",)
_REMAPPED = ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",)
_ECC = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",)
_CLOCKS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_DOWN = ("DCGM_FI_DEV_NVLINK_RECOVERY_FAILED_TOTAL",
         "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS")  # fmt: skip
_LAST_XID, _XIDS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
_WANTED = frozenset(
    (*_RECOVERY, *_FAILED, *_PENDING, *_REMAPPED, *_ECC, *_CLOCKS, *_DOWN, _LAST_XID, _XIDS)
)
#: A link that was lost is so until the GPU is reset, as Xid 74 asks for.
_LINK_IS_DOWN = FaultVerdict(Severity.CRITICAL, Action.RESET_GPU, Recovery.COUNTER_RESET)


class DcgmGpu(msgspec.Struct, frozen=True):
    """What is said of a GPU; None for what is not. `xids` counts codes in the exporter's window."""

    look: GpuLook
    last_xid: int | None = None
    xids: dict[int, int] | None = None
    links_down: int | None = None


class DcgmMemory(msgspec.Struct, frozen=True):
    """Strikes of the driver's values; the last code, counts of codes and lost links by GPU."""

    values: NvmlMemory = NvmlMemory()
    last: dict[str, int] = {}
    counts: dict[str, dict[str, int]] = {}
    links: dict[str, int] = {}


def parse_gpus(page: bytes) -> tuple[DcgmGpu, ...]:
    """Return the GPUs of a page in their order; OSError for what is none."""
    try:
        found = parse_page(page, _WANTED, samples_max=SAMPLES_MAX)
    except BadPage as error:
        raise OSError(str(error)) from error
    values: dict[int, dict[str, int]] = {}
    xids: dict[int, dict[int, int]] = {}
    addresses: dict[int, str] = {}
    for name, samples in found.items():
        for labels, value in samples.items():
            index = whole_number(dict(labels).get("gpu", ""))
            if index is None or not 0 <= value < 1 << 63 or name not in _WANTED:
                continue  # NaN is blank
            if address := dict(labels).get("pci_bus_id"):
                addresses[index] = address
            own = values.setdefault(index, {})
            own[name] = max(int(value), own.get(name, 0))  # of all instances of MIG
            if name == _XIDS:
                _count(xids.setdefault(index, {}), labels, int(value))
    if len(values) > GPUS_MAX:
        raise OSError(f"it has {len(values):,} GPUs; at most: {GPUS_MAX}")
    return tuple(
        _gpu(index, addresses.get(index), own, xids.get(index))
        for index, own in sorted(values.items())
    )


def _count(codes: dict[int, int], labels: Labels, count: int) -> None:
    """Take in how often a code was seen; a GPU without any has a sample of none."""
    code = whole_number(dict(labels).get("xid", ""))
    if code and count and len(codes) < CODES_MAX:
        codes[code] = max(count, codes.get(code, 0))


def _gpu(
    index: int, address: str | None, values: dict[str, int], xids: dict[int, int] | None
) -> DcgmGpu:
    def value(names: tuple[str, ...]) -> int | None:
        return next((values[name] for name in names if name in values), None)

    failed = value(_FAILED)
    rows = None
    if failed is not None:
        rows = (0, value(_REMAPPED) or 0, int(bool(value(_PENDING))), int(bool(failed)))
    look = GpuLook(
        index, address, recovery_action=value(_RECOVERY), rows=rows, uncorrected=value(_ECC),
        slowdown=value(_CLOCKS),
    )  # fmt: skip
    return DcgmGpu(look, values.get(_LAST_XID), xids, value(_DOWN))


def read(page: LoopbackPage) -> tuple[DcgmGpu, ...]:
    """Return the GPUs; Absent, OSError."""
    return parse_gpus(page.read())


def judge(
    facts: tuple[DcgmGpu, ...], memory: DcgmMemory, at: Moment, *, settings: AgentSettings,
    table: XidTable,
) -> Judged[DcgmMemory]:  # fmt: skip
    """Give what the driver's values are, Xids that are new, and links that were lost."""
    look = NvmlLook(tuple(gpu.look for gpu in facts))
    found = nvml.judge(look, memory.values, at, settings=settings)
    observations = [
        replace(each, identity=replace(each.identity, check=_CHECKS[each.identity.check]))
        for each in found.observations
    ]
    skipped = [
        replace(each, check=_CHECKS[each.check])
        for each in found.skipped if each.check in _CHECKS
    ]  # fmt: skip
    last, counts, links = dict(memory.last), dict(memory.counts), dict(memory.links)
    resets: set[Identity] = set()
    for gpu in facts:
        name = gpu.look.name
        observations += [_xid(name, code, table, at) for code in _new_codes(gpu, memory)]
        if gpu.last_xid is not None:
            last[name] = gpu.last_xid
        if gpu.xids is not None:
            counts[name] = {str(code): count for code, count in gpu.xids.items()}
        if gpu.links_down is None:
            continue
        of = identity(LINKS, name)
        if gpu.links_down < links.get(name, 0):
            resets.add(of)
        links[name] = gpu.links_down
        if gpu.links_down:
            text = f"links of NVLink were lost {gpu.links_down:,} times"
            observations.append(observed(of, _LINK_IS_DOWN, text, at))
    return Judged(
        DcgmMemory(found.memory, last, counts, links), tuple(observations), found.components,
        frozenset(resets), skipped=tuple(skipped),
    )  # fmt: skip


def _new_codes(gpu: DcgmGpu, memory: DcgmMemory) -> list[int]:
    """Return the codes that were seen since the look before."""
    name = gpu.look.name
    if gpu.xids is not None:
        before = memory.counts.get(name, {})
        return sorted(code for code, n in gpu.xids.items() if n > before.get(str(code), 0))
    was = memory.last.get(name)  # at the first look the code may be of days ago
    return [gpu.last_xid] if gpu.last_xid and was is not None and was != gpu.last_xid else []


def _xid(name: str, code: int, table: XidTable, at: Moment) -> Observation:
    """Return the sight of a code; one that may follow another one says nothing by itself here."""
    known = table.xid(code, "")
    verdict = table.consequence() if known.follows else known.verdict
    text = f"Xid {code}: {known.meaning}"
    return observed(identity(XID, name, (str(code),)), verdict, text, at)


def source(
    _host: Host, settings: AgentSettings
) -> SignalSource[tuple[DcgmGpu, ...], DcgmMemory] | None:
    """Return the source of DCGM's exporter; None where its page is not named."""
    url = settings.monitors.dcgm
    if not url:
        return None
    return SignalSource(
        SOURCE, (XID, LINKS, *_CHECKS.values()), DcgmMemory,
        partial(read, LoopbackPage(url, PAGE_BYTES_MAX)),
        partial(judge, settings=settings, table=XidTable(settings.gpu)),
        period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
