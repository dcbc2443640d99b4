"""Kubernetes' own end-to-end tests of its API machinery, run against the embedded cluster.

`tools/kubernetes-e2e/build.sh` builds them. Every test is run, but for those that concern what the
embedded API does not claim: each of these stands here with the reason. Those that fail are accepted
differences (`tests/conformance/differences.yaml`, `upstream`). The result goes to
`tests/conformance/UPSTREAM.md`.
"""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.accepted import accepted_upstream

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "tests/conformance/UPSTREAM.md"
FOCUS = r"\[sig-api-machinery\]"
SECONDS_MAX = 1500

_WORKLOADS = "needs a controller of workloads (ReplicationController, Deployment, CronJob)"
_CEL = "CEL is not claimed: refused with 422"
_IN_CLUSTER = "its server runs in a pod of an image, behind a Service of the cluster"
_SCHEDULER = "needs plain pods to run: there is no kube-scheduler"
_CONTROL_PLANE = "concerns the processes of a control plane of its own (etcd, several API servers)"
#: (pattern of the name, why it is not run)
NOT_APPLICABLE: tuple[tuple[str, str], ...] = (
    (r"\] Aggregator |Aggregated APIServer|1\.17 [Ss]ample", "there is no aggregation layer"),
    (r"APIServerIdentity|Etcd failure|StorageVersion resources|health handlers", _CONTROL_PLANE),
    (r"CoordinatedLeaderElection", "LeaseCandidates are not served"),
    (r"API priority and fairness", "there is no priority and fairness; requests have one limit"),
    (r"life of a (replica set|replication controller)", _WORKLOADS),
    (r"VolumeAttributesClass|DynamicResourceAllocation", "counts kinds that are not served"),
    (r"ValidatingAdmissionPolicy|MutatingAdmissionPolicy", _CEL),
    (r"CustomResourceValidationRules|CRDValidationRatcheting", _CEL),
    (r"match conditions", _CEL),
    (r"CustomResourceFieldSelectors", _IN_CLUSTER),
    (r"API chunking|chunks of table", "uses PodTemplates, which are not served"),
    (
        r"groupVersion and a resource within each APIGroup|PreferredVersion",
        "asks for APIServices: there is no aggregation layer",
    ),
    (
        r"aggregated discovery interface \[|endpoint Accept headers",
        "asks for APIServices: there is no aggregation layer",
    ),
    (r"all pods are removed|OrderedNamespaceDeletion|Generated clientset", _SCHEDULER),
    (r"accept \"application/vnd.kubernetes.protobuf", "answers in protobuf are not claimed: 406"),
    (r"CustomResourceConversionWebhook", "conversion of custom resources is not claimed"),
    (r"AdmissionWebhook", _IN_CLUSTER),
    (r"Garbage collector .*(\brc\b|deployment|cronjob|valid owner)", _WORKLOADS),
    (r"ComprehensiveNamespaceDraining|\[Slow\]|\[Flaky\]", "slow or flaky by its own label"),
    (r"CBOR", "CBOR is not claimed"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test: "passed", "failed" or "skipped" (by itself), and what it said."""

    name: str
    status: str
    message: str = ""


def reason_not_run(name: str) -> str | None:
    """Return why a test is not run; None when it is."""
    return next((why for text, why in NOT_APPLICABLE if re.search(text, name)), None)


def known_failure(name: str) -> str | None:
    """Return the accepted difference that a test fails for; None when it is to pass."""
    return next((why for text, why in accepted_upstream().items() if text in name), None)


def run(binary: Path, kubeconfig: Path, scratch: Path, *, dry: bool = False) -> list[Outcome]:
    """Run the tests that apply (with `dry` all, without doing anything), in the order of names."""
    report = scratch / f"junit-{'dry' if dry else 'run'}.xml"
    command = [
        str(binary), "--provider=skeleton", "--e2e-verify-service-account=false",
        "--kube-api-content-type=application/json", f"--kubeconfig={kubeconfig}",
        "--allowed-not-ready-nodes=-1", "--delete-namespace-on-failure=true",
        f"--ginkgo.focus={FOCUS}", f"--ginkgo.junit-report={report}", "--ginkgo.no-color",
        "--ginkgo.seed=1",
        f"--ginkgo.timeout={SECONDS_MAX}s", f"--test.timeout={SECONDS_MAX + 60}s",
    ]  # fmt: skip
    if dry:
        command.append("--ginkgo.dry-run")
    else:
        command += [f"--ginkgo.skip={text}" for text, _ in NOT_APPLICABLE]
    with (scratch / "e2e.log").open("w") as log:
        subprocess.run(
            command, cwd=scratch, stdout=log, stderr=subprocess.STDOUT, check=False,
            timeout=SECONDS_MAX + 120,
        )  # fmt: skip
    return sorted(_outcomes(report), key=lambda outcome: outcome.name)


def _outcomes(report: Path) -> list[Outcome]:
    found: list[Outcome] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        name = case.get("name", "").removeprefix("[It] ")
        if not re.search(FOCUS, name):
            continue
        trouble = case.find("failure")
        trouble = trouble if trouble is not None else case.find("error")
        if trouble is not None:
            found.append(Outcome(name, "failed", (trouble.get("message") or "").strip()))
        else:
            status = "skipped" if case.find("skipped") is not None else "passed"
            found.append(Outcome(name, status))
    return found


def text_of(names: Sequence[str], ran: Mapping[str, Outcome]) -> str:
    """Return the report: one line per test, with its result or why it is not run."""
    passed = sum(o.status == "passed" for o in ran.values() if reason_not_run(o.name) is None)
    lines = [
        "# Kubernetes' own end-to-end tests of its API machinery, against the embedded cluster",
        "",
        "Generated by `tests/conformance/test_upstream.py`; Kubernetes v1.36.3. "
        f"{passed} pass of {len(names)}; the others stand with the reason.",
        "",
        "| Test | Result |",
        "| --- | --- |",
    ]
    for name in sorted(names):
        why = reason_not_run(name)
        result = f"not applicable: {why}" if why else ran[name].status
        if result == "failed":
            result += f": {known_failure(name)}"
        short = name.replace("[sig-api-machinery] ", "").replace("|", "\\|")
        lines.append(f"| {short} | {result} |")
    return "\n".join(lines) + "\n"
