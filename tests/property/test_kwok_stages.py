"""Whatever a file of KWOK stages holds: it is refused with places in it, or its profile parses."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.embedded.virtual.profile import parse_profile
from fairlead.input.errors import CliError
from fairlead.sim.kwok.objects import read_template
from fairlead.sim.kwok.stages import Conversion, convert

KEYS = (
    ".metadata.deletionTimestamp", ".status.phase", ".status.podIP", ".metadata.finalizers",
    ".status.containerStatuses", ".status.containerStatuses.[].state.running.startedAt",
    ".status.initContainerStatuses.[].state.waiting.reason", ".spec.restartPolicy",
    '.metadata.labels["a.b/c"]', '.metadata.annotations["d"]', ".metadata.ownerReferences.[].kind",
    '.status.conditions.[] | select( .type == "Ready" ) | .status',
    '.status.conditions.[] | select( .type == "gate" ) | .status', ".spec.unknown",
)  # fmt: skip
LINES = (
    "phase: Running", "phase: Pending", "phase: Failed", "phase: Succeeded", "phase: {{ .x }}",
    "containerStatuses:", "initContainerStatuses:", "conditions:", "- state:", "    running: {}",
    "    terminated:", "      exitCode: 3", "      exitCode: {{ $code }}", "      reason: A",
    "    waiting:", "{{ $code := or ( index $a \"k\" ) 4 }}", "{{ range .spec.containers }}",
    "{{ end }}", "- status: \"True\"", "  type: gate", "podIP: 10.0.0.1", "reason: B\tC", "---",
)  # fmt: skip
WORDS = ("Pending", "Running", "Succeeded", "Job", "True", "False", "x", "-bad-", "é\n")

few = st.integers(min_value=0, max_value=100_000)
expressions = st.sampled_from([*KEYS, '.metadata.annotations["e"]'])
sources = st.fixed_dictionaries({"expressionFrom": expressions})
requirements = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    },
    optional={"values": st.lists(st.sampled_from(WORDS), max_size=2)},
)
specs = st.fixed_dictionaries(
    {
        "resourceRef": st.just({"kind": "Pod"}),
        "selector": st.fixed_dictionaries(
            {"matchExpressions": st.lists(requirements, max_size=3)},
            optional={"matchLabels": st.dictionaries(st.sampled_from(WORDS), st.just("v"))},
        ),
        "next": st.fixed_dictionaries(
            {},
            optional={
                "statusTemplate": st.lists(st.sampled_from(LINES), max_size=12).map("\n".join),
                "delete": st.booleans(),
                "finalizers": st.sampled_from([{"empty": True}, {"add": [{"value": "x"}]}]),
            },
        ),
    },
    optional={
        "weight": few,
        "delay": st.fixed_dictionaries(
            {},
            optional={
                "durationMilliseconds": few,
                "jitterDurationMilliseconds": few,
                "durationFrom": sources,
                "jitterDurationFrom": sources,
            },
        ),
    },
)
START = {
    "resourceRef": {"kind": "Pod"},
    "selector": {"matchExpressions": [
        {"key": ".status.phase", "operator": "In", "values": ["Pending"]},
    ]},
    "next": {"statusTemplate": "phase: Running"},
}  # fmt: skip


def conversion(text: str) -> Conversion | CliError:
    try:
        return convert(text, source="s.yaml", name="life")
    except CliError as error:
        return error


def spec(conditions: str, template: str, delay: dict[str, int], weight: int) -> dict[str, Any]:
    """Return a spec; `conditions` are a key, an operator and perhaps a value each."""
    tests = [each.split() for each in conditions.split(", ")]
    expressions = [{"key": k, "operator": op, "values": values} for k, op, *values in tests]
    does = {"delete": True} if template == "delete" else {"statusTemplate": template}
    return {
        "resourceRef": {"kind": "Pod"}, "selector": {"matchExpressions": expressions},
        "next": does, "weight": weight, "delay": delay,
    }  # fmt: skip


PATHS = (
    (".status.phase In Pending", "phase: Running"),
    (".status.phase In Pending", "phase: Failed\nreason: Evicted"),
    (".status.podIP DoesNotExist", "podIP: 10.0.0.1"),
    (".status.initContainerStatuses[].state.waiting Exists",
     "initContainerStatuses:\n- state:\n    running: {}"),
    ('.status.phase In Running, .metadata.labels["a.b/c"] In x', "phase: Failed"),
    (".status.phase In Running", "phase: Succeeded"),
    ('.status.phase In Running, .status.conditions[]|select(.type=="gate")|.status NotIn True',
     'conditions:\n- status: "True"\n  type: gate'),
    (".metadata.deletionTimestamp Exists", "delete"),
)  # fmt: skip
delays = st.fixed_dictionaries(
    {}, optional={"durationMilliseconds": few, "jitterDurationMilliseconds": few}
)
plausible = st.builds(
    lambda path, delay, weight: spec(*path, delay, weight), st.sampled_from(PATHS), delays, few
)


@given(st.one_of(st.lists(plausible, max_size=5), st.lists(specs, max_size=4)))
def test_every_profile_that_is_converted_parses(specs: list[dict[str, Any]]) -> None:
    documents = [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": f"s{i}"},
         "spec": spec} for i, spec in enumerate([START, *specs])
    ]  # fmt: skip
    text = "\n---\n".join(json.dumps(document) for document in documents)
    found = conversion(text)
    if isinstance(found, CliError):
        assert all(problem.where.startswith("s.yaml:") for problem in found.problems)
        return
    assert len(parse_profile(found.text).stages) == found.stages > 0
    assert all(line.startswith("s.yaml:") for line in (*found.assumed, *found.left_out))


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=20))).map("\n".join))
def test_every_template_is_read_with_entries_within_it(text: str) -> None:
    found = read_template(text)
    lines = max(len(text.splitlines()), 1)
    entries = (*found.phases, *found.exit_codes, *found.reasons, *found.messages)
    assert all(0 <= entry.offset < lines for entry in entries)
