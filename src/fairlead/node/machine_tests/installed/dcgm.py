"""NVIDIA's own diagnosis: `dcgmi diag -r LEVEL -j`, of DCGM 2 to 4.

What it says of a GPU counts by the severity that it gives (NVIDIA/DCGM, dcgmlib/dcgm_errors.h): one
to be isolated, triaged or reset has failed; a setting of the driver that it dislikes (persistence
mode), and what it does not know itself, are Errors. Versions without severities: what fails in the
category Deployment is about software. A result that lacks a GPU is of another run.

The document has the same tree in all versions (NVIDIA/DCGM, nvvs/include/JsonResult.hpp and
nvvs/plugin_src/common; its own tests have real ones): categories, tests, results. DCGM 4 names
each GPU by `entity_id`, earlier ones by a list in `gpu_ids`, or `gpu_id`; a warning is a text, or
an object with `warning` and `error_severity`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.installed.tool import InstalledTool
from fairlead.node.machine_tests.program import Broken, number
from fairlead.node.running.host import Absent

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
#: Severities of errors: the GPU can work, and those that say that it cannot.
_NONE, _MONITOR = 0, 1
_BROKEN = frozenset({2, 4, 6})  # isolate, triage, reset
_DEPLOYMENT = "Deployment"


class DcgmOptions(msgspec.Struct, frozen=True):
    """`level` 1 to 4; `host`: the host engine, as HOST:PORT; `seconds` for the run."""

    level: int = 2
    host: str = ""
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class DcgmResult:
    """What a test says of GPUs. `severities`: those of its warnings that have one."""

    test: str
    category: str
    gpus: tuple[str, ...]
    status: str
    why: str = ""
    severities: tuple[int, ...] = ()

    @property
    def has_failed(self) -> bool:
        """True when it says that something is wrong, with the machine or with the run."""
        is_bad = self.status in ("fail", "failed", "error")
        return is_bad and any(each not in (_NONE, _MONITOR) for each in self.severities or (-1,))

    @property
    def is_of_hardware(self) -> bool:
        """True for a failure that is one of the hardware."""
        if not self.severities:
            return self.category != _DEPLOYMENT
        return not _BROKEN.isdisjoint(self.severities)


def read_results(text: str) -> tuple[DcgmResult, ...]:
    """Return the results in what `dcgmi diag -j` wrote; RuntimeError for what is no diagnosis."""
    start, end = text.find("{"), text.rfind("}")
    try:
        document = json.loads(text[start : end + 1] if 0 <= start < end else "")
    except (ValueError, RecursionError) as error:
        said = " ".join(text.split())[:120]
        raise RuntimeError(f"dcgmi says what is no diagnosis: {said or 'nothing'}") from error
    root = next((r for key in _ROOTS if isinstance(r := _table(document).get(key), dict)), None)
    if root is None:
        raise RuntimeError("dcgmi says what is no diagnosis: it has no 'DCGM Diagnostic'")
    for source in (document, root):
        if why := _table(source).get("runtime_error"):
            raise RuntimeError(f"dcgmi: {_word(why)}")
    return tuple(_results(root))


def _results(root: object) -> Iterator[DcgmResult]:
    for category in _list(_table(root).get("test_categories")):
        name = _word(_table(category).get("category"))
        for test in _list(_table(category).get("tests")):
            for result in _list(_table(test).get("results")):
                yield _result(_word(_table(test).get("name")), name, _table(result))


def _result(test: str, category: str, result: dict[str, Any]) -> DcgmResult:
    warnings = result.get("warnings")
    texts, severities = list[str](), list[int]()
    for each in warnings if isinstance(warnings, list) else [warnings] if warnings else []:
        texts.append(_word(_table(each).get("warning")) if isinstance(each, dict) else _word(each))
        severity = _table(each).get("error_severity")
        if isinstance(severity, int):
            severities.append(severity)
    gpus = result.get("gpu_ids", result.get("gpu_id"))
    if result.get("entity_group") == "GPU":
        gpus = result.get("entity_id")
    ids = tuple(filter(None, (each.strip() for each in _word(gpus).split(","))))
    status = _word(result.get("status")).lower()
    return DcgmResult(test, category, ids, status, "; ".join(texts), tuple(severities))


def judge(results: tuple[DcgmResult, ...], gpus: int) -> Iterable[Figure]:
    """Return how many tests passed; Broken, Absent where all was skipped, RuntimeError."""
    bad = [each for each in results if each.has_failed]
    for each in sorted(bad, key=lambda each: not each.is_of_hardware):
        text = f"GPU {','.join(each.gpus) or '?'}: {each.test}: {each.why or each.status}"
        if each.is_of_hardware:
            raise Broken(text)
        raise RuntimeError(f"dcgmi: {text}")
    passed = [each for each in results if each.status in ("pass", "passed", "warn", "fail")]
    if results and not passed:
        raise Absent("dcgmi skipped every test")
    seen = {gpu for each in results for gpu in each.gpus}
    if len(seen) < gpus:
        raise RuntimeError(f"dcgmi: the diagnosis is of {len(seen)} GPUs, and {gpus} are here")
    return (number("passed", len(passed)), number("gpus", len(seen)))


def measure(options: DcgmOptions, tool: InstalledTool | None = None) -> Iterable[Figure]:
    """Return what the diagnosis of all GPUs found; Broken, Absent, RuntimeError."""
    tool = tool or InstalledTool("dcgmi")
    gpus = tool.gpus()
    host = ("--host", options.host) if options.host else ()
    ended = tool.said(options.seconds, "diag", *host, "-r", str(options.level), "-j")
    # Its exit code is not 0 for failures and for warnings alike: the document counts.
    return judge(read_results(ended.text), gpus)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
