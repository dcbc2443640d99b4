"""Writes REPORT.md from a run of the suite: one line per point, both targets, a verdict.

    pytest --junitxml=run.xml tests/conformance
    python -m tests.conformance.report run.xml

Tests of other folders in the same run do not count. A test belongs to the point in its name
(`test_p36_...`, `test_52_...`), a compared scenario to the points in `COMPARED`, kubectl's stories
to point 58. The points and their numbers are those of the list in `docs/design/conformance.md`.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPORT = Path(__file__).with_name("REPORT.md")
TITLES = {
    1: "a new uid for each incarnation", 2: "one growing version",
    3: "a write that changes nothing",
    4: "fields that clients do not own", 5: "generation", 6: "creation time", 7: "generateName",
    8: "names and namespaces", 9: "managedFields", 10: "reads are copies", 11: "PUT and versions",
    12: "PUT and names, uids", 13: "a taken name", 14: "status apart from spec",
    15: "scale, binding, eviction", 16: "merge patch", 17: "JSON patch",
    18: "strategic merge patch",
    19: "server-side apply", 20: "conditional patches", 21: "dryRun", 22: "fieldValidation",
    23: "immutable fields", 24: "size limits", 25: "finalizers", 26: "deletion is final",
    27: "graceful deletion of pods", 28: "preconditions", 29: "propagation",
    30: "garbage collection",
    31: "deletecollection", 32: "deletion of namespaces", 33: "DELETED and its version",
    34: "answers to deletes", 35: "lists", 36: "pages", 37: "expired pages",
    38: "versions of lists",
    39: "label selectors", 40: "field selectors", 41: "all namespaces, verbs",
    42: "the stream of a watch", 43: "where a watch starts", 44: "too old a version",
    45: "selections that change", 46: "bookmarks", 47: "WatchList", 48: "the end of a watch",
    49: "slow readers", 50: "watching one object", 51: "Status", 52: "codes",
    53: "discovery", 54: "aggregated discovery", 55: "OpenAPI", 56: "tables",
    57: "metadata only", 58: "kubectl", 59: "protobuf", 60: "definitions", 61: "schemas",
    62: "CEL and versions of definitions", 63: "admission webhooks", 64: "built-in admission",
    65: "access reviews", 66: "leases and events",
}  # fmt: skip
NOT_CLAIMED = {
    59: "answers refused with 406",
    62: "CEL and conversion are refused with 422",
}  # fmt: skip
#: What each compared scenario really sends requests for.
COMPARED = {
    "p01_p06_objects_of_every_kind": (1, 2, 3, 5, 6, 66),
    "p04_p08_what_is_not_trusted_and_names": (4, 7, 8),
    "p08_pods_that_are_wrong": (8,),
    "p04_metadata_of_wrong_types": (4,),
    "p04_bodies_without_a_kind": (4,),
    "p08_pod_specs_that_are_wrong": (8, 64),
    "p11_p13_puts": (11, 12, 13, 66),
    "p15_bindings_and_evictions": (14, 15),
    "p16_p20_patches": (16, 17, 18, 20),
    "p21_p24_dry_runs_immutable_fields_and_sizes": (21, 23, 24),
    "p22_field_validation": (22,),
    "p25_p34_deletes": (25, 26, 27, 28, 31, 34),
    "p29_p30_owners": (29,),
    "p32_namespaces": (32,),
    "p35_p41_lists": (35, 36, 38, 39, 40, 41),
    "p42_p50_watches": (33, 42, 43, 45, 47, 50),
    "p51_p52_errors": (51, 52),
    "p53_p55_discovery": (53,),
    "p56_p57_forms": (56, 57),
    "p59_not_claimed": (59,),
    "p09_managers_of_every_kind": (9,),
    "p09_managers_of_updates": (9,),
    "p09_managers_are_reset_and_set": (9,),
    "p09_managers_of_pods_and_status": (9,),
    "p19_applies": (19,),
    "p19_refused_applies": (19, 20),
    "p19_applied_lists": (19,),
    "p19_applied_custom_resources": (19,),
    "p19_apply_after_other_writes": (19,),
    "p60_p62_definitions": (14, 15, 60, 61, 62),
    "p64_p65_admission_and_reviews": (64, 65),
    "p64_quotas": (64,),
    "p64_quotas_with_scopes": (64,),
    "p64_quotas_of_other_kinds": (64,),
    "p64_quotas_that_make_no_sense": (64,),
    "p64_limit_ranges": (64,),
    "p64_limit_ranges_of_pods_and_claims": (64,),
    "p64_limit_ranges_that_make_no_sense": (64,),
}
_POINTS = re.compile(r"(?<![0-9a-z])p?(\d\d)(?=_)")


@dataclass(slots=True)
class Tally:
    """Outcomes at one target."""

    passed: int = 0
    failed: int = 0
    excused: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        parts = [f"{self.passed} passed"] if self.passed else []
        parts += [f"{self.failed} FAILED"] if self.failed else []
        parts += [f"{self.excused} excused"] if self.excused else []
        parts += [f"{self.skipped} not run"] if self.skipped else []
        return ", ".join(parts) or "-"

    def count(self, case: ET.Element) -> None:
        """Add one test's outcome."""
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed += 1
        elif skipped is None:
            self.passed += 1
        elif skipped.get("type") == "pytest.xfail":
            self.excused += 1
        else:
            self.skipped += 1


def points_of(name: str) -> list[int]:
    """Return the points that a test's name, with its parameters, speaks for."""
    if name.startswith("test_kubectl"):
        return [58]
    if name.startswith("test_both_servers_answer"):
        return list(COMPARED.get(name.partition("[")[2].rstrip("]"), ()))
    if name.startswith("test_both_servers_walk"):
        return [1, 2, 3, 11, 13, 16, 20, 25, 36, 38, 42, 45]
    return [int(text) for text in _POINTS.findall(name)][:1]


def _verdict(point: int, embedded: Tally, real: Tally, compared: Tally) -> str:
    if embedded.failed or compared.failed or real.failed:
        return "differs"
    if point in NOT_CLAIMED:
        return f"not claimed: {NOT_CLAIMED[point]}"
    if compared.passed or real.passed:
        return "same" if not real.excused else "same, with accepted differences"
    return "embedded only" if embedded.passed else "no test"


def _cases(root: ET.Element) -> Iterator[ET.Element]:
    """Yield the tests of this folder."""
    for case in root.iter("testcase"):
        if case.get("classname", "").startswith("tests.conformance."):
            yield case


def render(root: ET.Element) -> str:
    """Return the report of a run."""
    tallies = {point: (Tally(), Tally(), Tally()) for point in TITLES}
    for case in _cases(root):
        name = case.get("name", "")
        for point in points_of(name):
            embedded, real, compared = tallies.get(point, (Tally(), Tally(), Tally()))
            if name.startswith(("test_both_servers", "test_kubectl")):
                compared.count(case)
            elif "[kubernetes" in name:
                real.count(case)
            else:
                embedded.count(case)
    lines = [
        "# Conformance of the embedded API",
        "",
        "Generated by `make test-kubernetes`. Compared: the same requests, or kubectl command",
        "lines, to the embedded server and to kube-apiserver 1.36.3, every answer equal but for",
        "what `differences.yaml` accepts with a reason. Excused: a test that the real server does",
        "not pass, listed there too.",
        "",
        "| Point | What | Embedded | Real | Compared | Verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for point, title in TITLES.items():
        embedded, real, compared = tallies[point]
        verdict = _verdict(point, embedded, real, compared)
        lines.append(f"| {point} | {title} | {embedded} | {real} | {compared} | {verdict} |")
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Write the report of the run recorded in that file, if the real server took part in it."""
    root = ET.parse(path).getroot()
    cases = [c for c in _cases(root) if "test_both_servers_answer" in c.get("name", "")]
    if not cases or all(case.find("skipped") is not None for case in cases):
        print("no real control plane took part: the report stays as it is")
        return
    REPORT.write_text(render(root))
    print(f"wrote {REPORT}")


if __name__ == "__main__":
    main(sys.argv[1])
