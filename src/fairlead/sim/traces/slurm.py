"""A dump of `sacct -P` as a trace: which jobs came, what they held, how long they ran and waited.

    sacct -a -P -D -S 2026-10-01 -E 2026-11-01 -o JobID,Submit,Eligible,Start,End,State,Account,\
User,NNodes,NodeList,AllocTRES,Timelimit,SubmitLine

Columns are found by their titles; the last one has the rest of its line. Steps are passed over.
Lines of one job (-D shows a job that was requeued once for each run) are one job: its last run,
with the first submission and start. What a job would have run without its end is not known where
it was cancelled or preempted, lost its node, or runs still; it then runs as long as it did.

Source: sacct(1), JOB ACCOUNTING FIELDS and JOB STATE CODES.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead.api.values.bounds import AFTER_MAX
from fairlead.decide.words import plural
from fairlead.sim.traces.trace import AfterJob, BadLine, TraceJob

NEEDED = ("JobID", "Submit", "Start", "End", "State")
#: A job that its time limit ended wanted at least so much more.
_MORE_SECONDS = 60.0
_TRES = re.compile(r"([a-z/]+)=(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)[cn]?", re.IGNORECASE)
_DEPENDENCY = re.compile(r"(?:--dependency[= ]|(?<!\S)-d ?)(\S+)")
_LIMIT = re.compile(r"(?:(\d{1,6})-)?(\d{1,9}):(\d{1,2})(?::(\d{1,2}))?")
_UNITS = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_STATES = {
    "after": "Started", "afterok": "Succeeded", "afterany": "Finished", "afternotok": "Failed",
}  # fmt: skip
#: Ends that say how long a job ran, and not how long it would have.
_CENSORED = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "RUNNING", "COMPLETING", "SUSPENDED",
             "REQUEUED", "BOOT_FAIL", "DEADLINE")  # fmt: skip
_FAILED = ("FAILED", "OUT_OF_MEMORY")


@dataclass(frozen=True, slots=True)
class SacctRow:
    """One line: where it is, and its values by title."""

    line: int
    values: Mapping[str, str]

    def get(self, *titles: str) -> str:
        """Return the first of these columns that has a value; "" where none has."""
        return next((text for title in titles if (text := self.values.get(title, ""))), "")


def is_sacct(head: str) -> bool:
    """Return whether a first line has the titles that a dump needs."""
    return set(NEEDED) <= set(head.split("|"))


def sacct_rows(lines: Sequence[str]) -> Iterator[SacctRow | tuple[int, str]]:
    """Yield the rows of jobs without steps; of a line that is none its number and what is wrong."""
    heads = [number for number, line in enumerate(lines, 1) if line.strip()]
    if not heads:
        return
    titles = [title.strip() for title in lines[heads[0] - 1].split("|")]
    if not titles[-1]:  # of -p, which ends each line with the delimiter
        titles.pop()
    for number in heads[1:]:
        cells = [cell.strip() for cell in lines[number - 1].split("|", len(titles) - 1)]
        if len(cells) < len(titles):
            yield number, f"{len(cells)} columns; the titles are {len(titles)}"
            continue
        cells[-1] = cells[-1].removesuffix("|")
        row = SacctRow(number, dict(zip(titles, cells, strict=True)))
        if "." not in row.get("JobID"):
            yield row


def by_job(rows: Sequence[SacctRow]) -> dict[str, list[SacctRow]]:
    """Return the rows of each job in order of their submission."""
    jobs: dict[str, list[SacctRow]] = {}
    for row in rows:
        jobs.setdefault(row.get("JobID"), []).append(row)
    for runs in jobs.values():
        runs.sort(key=lambda row: (row.get("Submit"), row.get("Start")))
    return jobs


def sacct_job(runs: Sequence[SacctRow], known: Mapping[str, Sequence[str]]) -> TraceJob | None:
    """Return the job of its rows; None for one that has never run. BadLine.

    `known` are the ids of all jobs by the number that a dependency names.
    """
    ran = [row for row in runs if _instant(row, "Start") is not None]
    if not ran:
        return None
    first, last = ran[0], ran[-1]
    submitted = _instant(runs[0], "Submit")
    if submitted is None:
        raise BadLine(f"Submit: '{runs[0].get('Submit')[:40]}' is no time")
    after, is_whole = _after(runs[0], known)
    eligible = _instant(runs[0], "Eligible")
    start = _instant(first, "Start") or 0.0
    if eligible is not None and not (after and is_whole) and submitted < eligible <= start:
        submitted, after = eligible, ()
    members = max(1, _count(last.get("NNodes", "AllocNodes"), "NNodes") or _tres(last, "node"))
    gpus = math.ceil(_tres(last, "gres/gpu") / members)
    cpus = _tres(last, "cpu") or _count(last.get("AllocCPUS", "NCPUS"), "AllocCPUS")
    memory = _tres(last, "mem")
    limit = _limit(last.get("Timelimit"))
    state = last.get("State").split(" ")[0].upper()
    run = _ran(last)
    if state == "TIMEOUT":
        run = max(run, limit or 0.0) + _MORE_SECONDS
    return TraceJob(
        at_seconds=submitted, name=f"job-{runs[0].get('JobID')}", members=members, gpus=gpus,
        run_seconds=run, tenant=last.get("Account", "User") or "default", limit_seconds=limit,
        cpu_milli=max(1, -(-cpus * 1_000 // members)) if cpus else 1_000,
        memory_bytes=-(-memory // members) or 1 << 30, fails=state in _FAILED,
        waited_seconds=max(0.0, start - submitted), nodes=_nodes(last), after=after,
    )  # fmt: skip


def assumed(jobs: Mapping[str, Sequence[SacctRow]]) -> list[str]:
    """Return what the reader assumes of these jobs."""
    ends: Counter[str] = Counter()
    never = again = 0
    for runs in jobs.values():
        ran = [row for row in runs if _started(row)]
        never += not ran
        again += len(ran) > 1
        if ran:
            ends[ran[-1].get("State").split(" ")[0].upper()] += 1
    out = ["a node of a job is one member; times are read as they are written, without a zone"]
    cut = [f"{ends[state]:,} {state}" for state in _CENSORED if ends[state]]
    if cut:
        out.append(f"run as long as they did, and would have run longer: {', '.join(cut)}")
    if ends["TIMEOUT"]:
        out.append(f"reach their time limit again: {plural(ends['TIMEOUT'], 'job')}")
    if never:
        out.append(f"left out, since they have never run: {plural(never, 'job')}")
    if again:
        out.append(f"ran more than once, and count with their last run: {plural(again, 'job')}")
    return out


def _started(row: SacctRow) -> bool:
    return row.get("Start") not in ("", "Unknown", "None")


def _instant(row: SacctRow, title: str) -> float | None:
    """Return an instant; None for one that has not been. Only differences of two are meant."""
    text = row.get(title)
    if text in ("", "Unknown", "None"):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadLine(f"{title}: '{text[:40]}' is no time such as 2026-11-20T08:15:00") from None
    return at.replace(tzinfo=UTC).timestamp()


def _ran(row: SacctRow) -> float:
    start, end = _instant(row, "Start"), _instant(row, "End")
    if start is not None and end is not None:
        if end < start:
            raise BadLine(f"End {row.get('End')} lies before the start, {row.get('Start')}")
        return end - start
    text = row.get("ElapsedRaw")
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return float(text)
    elapsed = _limit(row.get("Elapsed"))
    if elapsed is None:
        raise BadLine("End: the job runs still, and neither Elapsed nor ElapsedRaw is there")
    return elapsed


def _limit(text: str) -> float | None:
    """Return the seconds of [D-]HH:MM:SS or MM:SS; None for no limit. BadLine."""
    if text in ("", "UNLIMITED", "Partition_Limit", "INVALID"):
        return None
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise BadLine(f"'{text[:40]}' is no time such as 1-12:00:00")
    days, *parts = (int(part or 0) for part in match.groups())
    if match[4] is None and match[1] is None:  # minutes and seconds
        parts = [0, parts[0], parts[1]]
    return float(days * 86_400 + parts[0] * 3_600 + parts[1] * 60 + parts[2]) or None


def _count(text: str, what: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise BadLine(f"{what}: '{text[:40]}' is no whole number")
    return int(text)


def _tres(row: SacctRow, name: str) -> int:
    """Return how much of a resource the job had, memory in bytes; 0 where nothing is said."""
    for match in _TRES.finditer(row.get("AllocTRES", "ReqTRES")):
        if match[1].lower() == name:
            amount = float(match[2])
            return int(amount * (1 << _UNITS[match[3].upper()])) if name == "mem" else int(amount)
    return 0


def _nodes(row: SacctRow) -> str:
    text = row.get("NodeList")
    return "" if text in ("None assigned", "Unknown") else text


def _after(row: SacctRow, known: Mapping[str, Sequence[str]]) -> tuple[tuple[AfterJob, ...], bool]:
    """Return what the job waited for, and whether that is all that its command line named."""
    match = _DEPENDENCY.search(row.get("SubmitLine"))
    if match is None:
        return (), False
    found: list[AfterJob] = []
    is_whole = "?" not in match[1]
    for part in match[1].strip("'\"").split(","):
        kind, _, listed = part.partition(":")
        for number in filter(None, listed.split(":")):
            ids = known.get(number.partition("+")[0], ())
            is_whole = is_whole and bool(ids) and kind in _STATES
            found += [AfterJob(_STATES[kind], f"job-{each}") for each in ids if kind in _STATES]
    return tuple(found[:AFTER_MAX]), is_whole and 0 < len(found) <= AFTER_MAX


def ids_by_number(jobs: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the ids of jobs by their own id and, of elements, by the number of their array."""
    out: dict[str, list[str]] = {}
    for each in jobs:
        out.setdefault(each, []).append(each)
        array = each.partition("_")[0]
        if array != each:
            out.setdefault(array, []).append(each)
    return out
