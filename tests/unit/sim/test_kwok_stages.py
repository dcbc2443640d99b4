"""Stages of KWOK as profiles: what each condition and template becomes, and what pods then do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.unit.embedded.test_virtual import World, live

from fairlead.api.resources import PODS
from fairlead.embedded.virtual.profile import Profile, Stage, is_kwok, parse_profile
from fairlead.input.errors import CliError, Code
from fairlead.sim.kwok.stages import Conversion, convert

DATA = Path(__file__).parents[2] / "golden" / "data" / "kwok"


def stage(name: str, conditions: str, next_: str, rest: str = "") -> str:
    """Return a document; `conditions` are items of matchExpressions, `next_` a template or JSON."""
    does = next_ if next_.startswith("{") else f"{{statusTemplate: {next_!r}}}"
    return (
        f"---\napiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {{name: {name}}}\n"
        "spec:\n  resourceRef: {apiGroup: v1, kind: Pod}\n"
        f"  selector:\n    matchExpressions: [{conditions}]\n  next: {does}\n{rest}"
    )


PENDING = "{key: .status.phase, operator: In, values: [Pending]}"
RUNNING = "{key: .status.phase, operator: In, values: [Running]}"
DELETED = "{key: .metadata.deletionTimestamp, operator: Exists}"
START = stage("start", PENDING, "phase: Running", "  delay: {durationMilliseconds: 2000}\n")


def converted(*documents: str) -> Conversion:
    return convert("".join(documents), source="s.yaml", name="life")


def profile(*documents: str) -> Profile:
    return parse_profile(converted(*documents).text)


def one(*documents: str) -> Stage:
    """Return the stage that is not the start, and that no stage stands in for."""
    found = [s for s in profile(START, *documents).stages if s.name == "x"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("delay", "seconds", "jitter"),
    [
        ("{durationMilliseconds: 1500}", 1.5, 0.0),
        ("{durationMilliseconds: 1000, jitterDurationMilliseconds: 5000}", 1.0, 4.0),
        ("{durationMilliseconds: 5000, jitterDurationMilliseconds: 1000}", 1.0, 0.0),
        ("{jitterDurationMilliseconds: 3000}", 0.0, 3.0),
    ],
)
def test_a_delay_is_drawn_between_the_duration_and_the_jitter_duration(
    delay: str, seconds: float, jitter: float
) -> None:
    found = one(stage("x", PENDING, "phase: Running", f"  delay: {delay}\n")).delay
    assert (found.seconds, found.jitter_seconds) == (seconds, jitter)


@pytest.mark.parametrize(
    ("key", "test", "state"),
    [
        (".status.podIP", "operator: DoesNotExist", "Bound"),
        (".status.containerStatuses", "operator: DoesNotExist", "Bound"),
        (".status.phase", "operator: NotIn, values: [Running, Failed]", "Bound"),
        (".status.containerStatuses.[].state.waiting.reason", "operator: In, values: [A]", "Bound"),
        (".status.initContainerStatuses[].state.running", "operator: Exists", "Bound"),
        ('.status.conditions.[] | select(.type == "Ready") | .status',
         'operator: In, values: ["True"]', "Running"),
        ('.status.conditions.[]|select(.type=="Initialized")|.status',
         'operator: In, values: ["False"]', "Bound"),
        (".status.containerStatuses.[].state.running", "operator: Exists", "Running"),
    ],
)  # fmt: skip
def test_the_state_that_a_stage_starts_from_follows_from_its_conditions(
    key: str, test: str, state: str
) -> None:
    condition = f"{{key: '{key}', {test}}}"
    assert one(stage("x", condition, "phase: Failed")).match.state.value == state


@pytest.mark.parametrize(
    ("test", "labels"),
    [
        ("operator: In, values: [a, b]", "app in (a,b)"),
        ("operator: NotIn, values: [a]", "app notin (a)"),
        ("operator: Exists", "app"),
        ("operator: DoesNotExist", "!app"),
    ],
)
def test_conditions_on_labels_become_a_selector(test: str, labels: str) -> None:
    condition = f"{{key: '.metadata.labels[\"app\"]', {test}}}"
    assert one(stage("x", f"{RUNNING}, {condition}", "phase: Failed")).match.labels == labels


def test_weights_stay_and_stages_that_all_have_none_are_drawn_evenly() -> None:
    a, b = (stage(name, PENDING, "phase: Running") for name in "ab")
    assert [s.weight for s in profile(a, b).stages][:2] == [1, 1]
    weighed = stage("c", PENDING, "phase: Running", "  weight: 7\n")
    assert [s.weight for s in profile(a, b, weighed).stages][:3] == [0, 0, 7]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (stage("x", "{key: .status.phase, operator: In, values: [Succeeded]}", "{delete: true}"),
         "s.yaml:17:3: x: it holds for no pod of a job that has not ended"),
        (stage("x", f"{RUNNING}, {{key: '.metadata.ownerReferences.[].kind', operator: In, "
               "values: [ReplicaSet]}", "phase: Failed"),
         "s.yaml:17:3: x: it holds for no pod of a job that has not ended"),
        (stage("x", DELETED, "phase: Failed"), "s.yaml:15:1: x: a deleted pod gets no last status"),
        (stage("x", f"{DELETED}, {{key: '.metadata.finalizers.[]', operator: In, values: [f]}}",
               "{finalizers: {remove: [{value: f}]}}"),
         "s.yaml:15:1: x: nothing that a profile has follows on it"),
        (stage("x", RUNNING, "message: still here"),
         "s.yaml:15:1: x: it leads no step further; what is tried again, or restarts, is not "
         "converted"),
    ],
)  # fmt: skip
def test_what_a_profile_does_not_have_is_left_out_and_said(document: str, said: str) -> None:
    found = converted(START, document)
    assert said in found.left_out
    assert not [s for s in parse_profile(found.text).stages if s.name == "x"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod\napiVersion: v1\n", "no stage leads pods to the phase Running"),
        ("{[", "not YAML"),
        ("".join(stage(f"s{i}", PENDING, "phase: Running") for i in range(201)),
         "s200: more stages than 200"),
        (START.replace("Pending]", "Pending").replace("[Pending", "[Pending, Running]"),
         "it is not clear if pods run when it starts"),
        (START.replace("v1alpha1", "v1beta9"), "no stage leads pods to the phase Running"),
        (START + stage("x", RUNNING, "{delete: true}"),
         "x: Running cannot lead to Gone; accepted: Succeeded, Failed"),
        (START + stage("x", RUNNING, "phase: Pending"),
         "x: Running cannot lead to Pending; accepted: Succeeded, Failed"),
        (START.replace("next: {", "steps: []\n  next: {"), "no field 'steps' in spec"),
        ("a: " + "[" * 100, "nested more than 64 levels deep"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_converted_is_refused(text: str, said: str) -> None:
    with pytest.raises(CliError) as caught:
        convert(text, source="s.yaml", name="life")
    assert said in " ".join(problem.message for problem in caught.value.problems)
    assert {p.code for p in caught.value.problems} <= {Code.PROFILE, Code.MANIFEST_TOO_LARGE}


def test_pods_live_as_the_general_stages_say_in_virtual_time() -> None:
    text = (DATA / "general.yaml").read_text()
    found = convert(text, source="general.yaml", name="life").text
    seen: dict[str, float] = {}

    async def scenario(world: World) -> None:
        begin = world.clock.now()
        for i in range(30):
            await world.pod(f"p{i}", node=f"v{i % 2:05d}")
        while any(world.names()):
            for name in world.names():
                phase = await world.phase(name)
                seen.setdefault(f"{name}/{phase}", world.clock.now() - begin)
                if phase == "Succeeded":
                    await world.client.delete(PODS, name, namespace="default")
            await asyncio.sleep(0.25)

    live(scenario, profile=found)
    starts = [seen[f"p{i}/Running"] for i in range(30)]
    runs = [seen[f"p{i}/Succeeded"] - seen[f"p{i}/Running"] for i in range(30)]
    assert 7 <= min(starts) < 11
    assert 19 < max(starts) <= 23.5
    assert 59.5 <= min(runs) < max(runs) <= 90.5


def test_a_file_that_kubectl_writes_as_json_is_recognised_and_converted() -> None:
    items = [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": "start"},
         "spec": {"resourceRef": {"kind": "Pod"}, "next": {"statusTemplate": "phase: Running"},
                  "selector": {"matchExpressions": [
                      {"key": ".status.phase", "operator": "In", "values": ["Pending"]}]}}}
    ]  # fmt: skip
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4)
    assert is_kwok(text)
    assert [each.name for each in profile(text).stages] == ["start", "run-until-deleted"]


def test_starts_that_are_drawn_at_several_steps_are_drawn_once_and_the_file_says_so() -> None:
    fresh = "{key: .status.podIP, operator: DoesNotExist}"
    initialized = """{key: '.status.conditions.[] | select(.type == "Initialized") | .status', """
    later = f"{PENDING}, {initialized} operator: In, values: ['True']}}"
    create = stage("create", fresh, "podIP: 1.2.3.4", "  delay: {durationMilliseconds: 1000}\n")
    found = converted(create, stage("go", later, "phase: Running"),
                      stage("x", fresh, "phase: Failed"))  # fmt: skip
    drawn = [(s.name, s.delay.seconds) for s in parse_profile(found.text).stages]
    assert drawn[:2] == [("go", 1.0), ("x", 0.0)]
    assert any("s.yaml:1:1: what a start leads to is drawn once" in line for line in found.assumed)


@pytest.mark.parametrize(("weights", "is_added"), [((3, 2), True), ((0, 0), True), ((0, 2), False)])
def test_an_end_is_added_only_where_it_cannot_compete_with_failures(
    weights: tuple[int, int], is_added: bool
) -> None:
    label = "{key: '.metadata.labels[\"app\"]', operator: In, values: [%s]}"
    fails = [
        stage(f"f{i}", f"{RUNNING}, {label % f'a{i}'}", "phase: Failed", f"  weight: {weight}\n")
        for i, weight in enumerate(weights)
    ]
    found = {s.name: s.weight for s in profile(START, *fails).stages}
    assert ("run-until-deleted" in found) is is_added
    assert not is_added or found["run-until-deleted"] == 0 < min(found["f0"], found["f1"])
