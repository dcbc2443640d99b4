"""What a job used of what it asked for, in a few lines (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import JobTraffic, MemberUse
from fairlead.api.values import quantity
from fairlead.cli.formats.text import bytes_text
from fairlead.cli.views.words import amount_text
from fairlead.decide.attempts.usage import JobAccount
from fairlead.decide.use.efficiency import Efficiency
from fairlead.decide.words import duration, plural

UNKNOWN = "unknown"
_BARS = " ▁▂▃▄▅▆▇█"
_MIB = 1 << 20


def efficiency_text(job: Job, attempt: int, found: Efficiency, *, note: str) -> list[str]:
    """Return the lines; what is not known is called so."""
    state = job.status.state or UNKNOWN
    count = plural(found.members, "member")
    if found.measured < found.members:
        count += f", of whom {found.measured:,} were measured"
    lines = [f"{job.metadata.name}   {state}, attempt {attempt}: {count}"]
    if not found.measured:
        return [*lines, f"use       {UNKNOWN}: {note}"]
    lines[0] += f", {duration(found.milliseconds / 1000)}"
    lines += [_cpu_line(found), _memory_line(found), *_gpu_lines(found), _disk_line(found)]
    if found.is_partial:
        lines.append("note      some of it was not measured: it may have used more")
    if found.advice:
        flags = {quantity.CPU: "--cpus", quantity.MEMORY: "--memory"}
        asks = " ".join(
            f"{flags[resource]} {quantity.format_base(resource, amount)}"
            for resource, amount in found.advice.items()
        )
        lines.append(f"next time {asks}   (for each member: its largest use, and a fifth more)")
    return lines


def _cpu_line(found: Efficiency) -> str:
    used, reserved, share = found.cpu_milliseconds, found.cpu_asked_milliseconds, found.cpu_share
    if used is None:
        return f"CPU       {UNKNOWN}"
    time = f"{used / 1000:.1f}s" if used < 60_000 else duration(used / 1000)
    if share is None or reserved is None:
        return f"CPU       {time} of processor time; none was asked for"
    whole = f"{reserved / 1000:.1f}s" if reserved < 60_000 else duration(reserved / 1000)
    return f"CPU       {share:.0%}: {time} of {whole} that were reserved"


def _memory_line(found: Efficiency) -> str:
    peak, asked, share = found.memory_peak_bytes, found.memory_asked_bytes, found.memory_share
    if peak is None:
        return f"memory    {UNKNOWN}"
    text = amount_text(quantity.MEMORY, peak)
    if share is not None and asked is not None:
        text = f"{share:.0%}: {text} of {amount_text(quantity.MEMORY, asked)}"
    text += f" ({found.memory_peak_task})"
    if found.memory_mean_bytes is not None:
        text += f", {amount_text(quantity.MEMORY, found.memory_mean_bytes)} on average"
    return f"memory    {text}"


def _gpu_lines(found: Efficiency) -> list[str]:
    """Return a line where GPUs were looked at, else none."""
    share = found.gpu_share
    if share is None:
        return []
    parts = [f"{share:.0%} of the time"]
    if found.gpu_memory_peak_bytes is not None:
        parts.append(f"{amount_text(quantity.MEMORY, found.gpu_memory_peak_bytes)} of a member")
    if found.gpu_occupancy_permille is not None:
        parts.append(f"SM occupancy {found.gpu_occupancy_permille / 1000:.0%}")
    if found.gpu_power_milliwatts is not None:
        parts.append(f"{found.gpu_power_milliwatts / 1000:,.0f} W a GPU")
    return [f"GPU       {', '.join(parts)}"]


def _disk_line(found: Efficiency) -> str:
    parts = [
        f"{word} {UNKNOWN if amount is None else amount_text(quantity.MEMORY, amount)}"
        for word, amount in (("read", found.read_bytes), ("written", found.written_bytes))
    ]
    return f"disk      {', '.join(parts)}"


def plot_lines(task: str, use: MemberUse) -> list[str]:
    """Return a line for each series of a member; a step without a look is empty."""
    if not use.step_seconds or not (use.cpu or use.gpu):
        return [f"{task}: it ended before there was anything to plot"]
    until = duration(len(use.cpu) * use.step_seconds)
    step = f"a column is {duration(use.step_seconds)}, {until} in all"
    cpu = _highest(use.cpu)
    memory = _highest(use.memory)
    return [
        f"{task}: {step}",
        f"CPU       |{_bars(use.cpu)}| {UNKNOWN if cpu is None else f'{cpu / 1000:.1f}'} at most",
        f"memory    |{_bars(use.memory)}| "
        f"{UNKNOWN if memory is None else amount_text(quantity.MEMORY, memory * _MIB)} at most",
        *([f"GPU       |{_bars(use.gpu)}| {_highest(use.gpu)}% at most"] if use.gpu else []),
    ]


def _highest(series: Sequence[int | None]) -> int | None:
    return max((each for each in series if each is not None), default=None)


def _bars(series: Sequence[int | None]) -> str:
    high = _highest(series) or 1
    most = len(_BARS) - 1
    return "".join(
        _BARS[0] if each is None else _BARS[max(1, -(-each * most // high))] for each in series
    )


def network_lines(traffic: JobTraffic | None) -> list[str]:
    """Return a line for each class of addresses; none where no node counted."""
    if traffic is None:
        return []
    whose = f"({plural(traffic.members, 'member')} counted, in all attempts)"
    return [
        f"{'network' if n == 0 else '':<10}{each.traffic_class}: sent "
        f"{bytes_text(each.sent)}, received {bytes_text(each.received)}"
        f"{f'   {whose}' if n == 0 else ''}"
        for n, each in enumerate(traffic.classes)
    ]


def account_lines(account: JobAccount) -> list[str]:
    """Return what all attempts held, and what that cost; nothing where they held no GPU."""
    if not account.gpu_hours:
        return []
    hours = f"{account.gpu_hours:,.1f} GPU-hours in all attempts"
    if account.cost is None:
        return [f"cost      {UNKNOWN}: {hours}, not all of them with a price of their pool"]
    return [f"cost      {account.cost:,.2f}: {hours}, by the prices of their pools"]


def efficiency_facts(
    job: Job, attempt: int, found: Efficiency, uses: Mapping[str, MemberUse], *,
    account: JobAccount, traffic: JobTraffic | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return it for programs: amounts in base units; what is not known is left out."""
    facts: dict[str, Any] = {
        "namespace": job.metadata.namespace, "job": job.metadata.name, "uid": job.metadata.uid,
        "state": job.status.state, "attempt": attempt, "members": found.members,
        "measuredMembers": found.measured, "isPartial": found.is_partial,
        "milliseconds": found.milliseconds if found.measured else None,
        "cpuMilliseconds": found.cpu_milliseconds,
        "cpuReservedMilliseconds": found.cpu_asked_milliseconds, "cpuShare": found.cpu_share,
        "memoryPeakBytes": found.memory_peak_bytes,
        "memoryPeakTask": found.memory_peak_task or None,
        "memoryAskedBytes": found.memory_asked_bytes, "memoryShare": found.memory_share,
        "memoryMeanBytes": found.memory_mean_bytes, "readBytes": found.read_bytes,
        "writtenBytes": found.written_bytes, "gpuShare": found.gpu_share,
        "gpuMilliseconds": found.gpu_milliseconds,
        "gpuBusyMilliseconds": found.gpu_busy_milliseconds,
        "gpuMemoryPeakBytes": found.gpu_memory_peak_bytes,
        "gpuPowerMilliwatts": found.gpu_power_milliwatts,
        "gpuOccupancyPermille": found.gpu_occupancy_permille,
        "advice": {resource: quantity.format_base(resource, amount)
                   for resource, amount in found.advice.items()},
        "gpuHours": round(account.gpu_hours, 4) or None,
        "cost": None if account.cost is None else round(account.cost, 4),
        "traffic": traffic, "tasks": dict(uses),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value is not None}
