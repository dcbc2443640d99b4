"""What an editor of one namespace draws harms no other; a canary for each promise that is watched.

A canary plants a hole and tries it: the promise that it is of must be reported, and no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.values.quantity import CLAIMED
from fairlead.controllers.elements.array_index import ArrayIndex
from fairlead.controllers.gangs.adoption import AdoptionController
from fairlead.controllers.gangs.job_index import JobIndex
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.decide.admission import jobs as admission
from fairlead.decide.adoption.actions import ReleaseMember
from fairlead.decide.jobs.actions import CreatePod
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.evict.preempt import Preempting
from fairlead.decide.placement.stages import fit
from fairlead.embedded.own_controllers.device_search import DeviceId
from fairlead.embedded.own_controllers.node_devices import NodeDevices
from fairlead.history.memory import MemoryHistory
from fairlead.model.claimed.device_pools import DevicePools
from fairlead.model.claimed.devices import DeviceTable, UnmatchedDevices
from fairlead.runtime.kept.history import HistoryQuery, JobRecord
from fairlead.runtime.watching.mirror import Change
from fairlead.sim.actors.stock_scheduler import StockScheduler
from fairlead.sim.tenants import admission_policies, runs, world
from fairlead.sim.tenants.bodies import (
    array,
    asking,
    create,
    gated,
    job,
    member_labels,
    owned,
    patch,
    pod,
)
from fairlead.sim.tenants.calls import TENANT, Call, Verb
from fairlead.sim.tenants.cel import EvaluationError, UnknownExpression, compiled
from fairlead.sim.tenants.devices import claim, template, with_claim
from fairlead.sim.tenants.runs import explored, hash_of, play, sequences_of

#: Worlds whose sequences are run: each has all kinds of calls, and together all judgements below.
WORLDS = tuple(f"test/{number}" for number in range(3))


def test_what_a_tenant_draws_harms_no_other() -> None:
    results = [explored(seed) for seed in WORLDS]
    assert "".join(result.text for result in results if result.broken) == ""
    judged = sum((result.judged for result in results), results[0].judged)
    assert {
        "nodes",
        "gangs",
        "late",
        "late guests",
        "quota",
        "accounts",
        "elements",
        "arrays",
        "bytes",
        "devices",
        "devices of pods",
        "devices counted",
        "late devices of open",
        "late devices of urgent",
    } <= judged.keys()
    outcomes = {o for r in results for outcomes in r.played.outcomes for o in outcomes}
    assert {"ok", "Forbidden", "Invalid", "NotFound", "InternalError"} <= {
        outcome.partition(":")[0] for outcome in outcomes
    }


def test_a_pod_that_is_given_another_controller_is_no_member_that_gives_way() -> None:
    """The claim of its gang ends within a minute; the pod itself stays, as a plain one may."""
    set_, daemons = (
        owned(gated("mine-0", 1, size="1", seconds=600), "apps/v1", kind, name="x", uid="u")
        for kind in ("ReplicaSet", "DaemonSet")
    )
    taken = {"metadata": {"ownerReferences": daemons["metadata"]["ownerReferences"]}}
    calls = (
        create("pods", set_), create("pods", pod("plain", 8, seconds=600)),
        patch("pods", "mine-0", taken, wait=0.05), patch("pods", "none", {}, wait=1.5),
        patch("pods", "none", {}), patch("pods", "none", {}, wait=90.0),
    )  # fmt: skip
    seed = _seed_of(lambda shape: shape.preempts_adopted and not shape.has_team)
    result = play(seed, [calls, (), (), (), (), calls])  # what code keeps of a first use is there
    assert result.broken == ""
    outcomes = [outcome.partition(":")[0] for outcome in result.played.outcomes[-1]]
    assert outcomes == ["ok", "ok", "ok", "NotFound", "NotFound", "NotFound"]


def test_a_pod_of_no_controller_may_be_lost_to_a_plain_pod_that_took_its_node() -> None:
    """kube-scheduler binds the plain pod in the instant of the placement, and it stays."""
    body = pod("mine", 8, seconds=900)
    body["spec"]["schedulingGates"] = [{"name": "example.com/mine"}]
    ungate = [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]
    seed = _seed_of(lambda shape: shape.binding is Binding.PINNED and not shape.has_team)
    waits = tuple(Call(Verb.WAIT, wait=70.0) for _ in range(5))
    result = play(seed, [(create("pods", body), patch("pods", "mine", ungate)), waits])
    assert result.broken == ""
    assert result.judged["lost guests"]


def _seed_of(is_meant: Callable[[world.WorldShape], bool]) -> str:
    seeds = (f"test/{number}" for number in itertools.count())
    return next(seed for seed in seeds if is_meant(world.WorldShape.of(seed)))


def test_equal_seeds_give_equal_logs() -> None:
    first, second = explored("same", 10), explored("same", 10)
    assert hash_of([first]) == hash_of([second])
    sequences = sequences_of("same", 1)  # the seed is all that differs
    assert play("same", sequences).played.log_hash != play("other", sequences).played.log_hash
    assert first.played.writes > 100


_CLAIM = {"key": names.TEAM, "operator": "Equal", "value": "rich", "effect": "NoSchedule"}


def test_a_tenant_has_no_right_beyond_his_role() -> None:
    node = {"metadata": {"name": "mine"}}
    placed = {"status": {"attempt": 7, "placement": {"attempt": 7, "roles": []}}}
    calls = (
        Call(Verb.CREATE, "nodes", "mine", node),
        Call(Verb.CREATE, "teams", "mine", node),
        Call(Verb.CREATE, "resourcequotas", "mine", node),
        create("jobs", job("own")),
        patch("jobs", "own", placed),
        create("jobs", job("high", priorityClassName="high")),
        create("pods", pod("high", priorityClassName="high")),
        create("jobs", job("of-rich", team="rich")),
        create("jobs", job("stands", adopts={"kind": "Pod", "name": "x"})),
        create("jobarrays", array("swept", "0-3", template=job("x"), parallelism=1)),
        patch("jobarrays", "swept", {"status": {"finished": "0-3"}}),
        create("jobs", _ELEMENT),
        create("jobs", job("swept-2")),
        patch("jobs", "swept-2", {"metadata": {"ownerReferences": _OWNED}}),
        patch("jobs", "swept-0", {"metadata": {"ownerReferences": None}}, wait=1.0),
        Call(Verb.DOWN),
        create("jobs", _ELEMENT),
        create("jobs", job("unseen")),
        create("pods", pod("unseen", schedulingGates=[{"name": "example.com/mine"}])),
        create("pods", pod("claims", nodeName="${node:rich}")),
        patch("pods", "unseen", [{"op": "add", "path": "/spec/tolerations/-", "value": _CLAIM}]),
    )
    result = play("rights", [calls])
    assert result.broken == ""
    assert [outcome.partition(":")[0] for outcome in result.played.outcomes[0]] == [
        "Forbidden", "Forbidden", "Forbidden", "ok", "ok", "ok", "Forbidden", "Invalid", "Invalid",
        "ok", "ok", "Invalid", "ok", "Invalid", "Invalid",
        "ok", "InternalError", "InternalError", "ok", "Forbidden", "Forbidden",
    ]  # fmt: skip


# Canaries


class _HistoryByName(MemoryHistory):
    """A history that takes jobs of one name for one job."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, str] = {}

    async def record(self, record: JobRecord) -> None:
        self._latest[record.name] = record.uid
        await super().record(record)

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        async for page in super().query(query):
            yield tuple(each for each in page if self._latest[each.name] == each.uid)


class _GrowingHistory(MemoryHistory):
    """A history that keeps more of a job than there was."""

    async def record(self, record: JobRecord) -> None:
        await super().record(dataclasses.replace(record, document=record.document * 300))


def _plant_taints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that does not look at taints."""
    fits = StockScheduler._fits

    def blind(self: StockScheduler, pod: Pod, name: str) -> bool:
        node = self._nodes[name]
        spec = with_fields(node.spec, taints=())
        self._nodes[name] = with_fields(node, spec=spec)
        try:
            return fits(self, pod, name)
        finally:
            self._nodes[name] = node

    monkeypatch.setattr(StockScheduler, "_fits", blind)


def _plant_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jobs controller that takes a pod for a member wherever it is."""
    on_pod = JobIndex._on_pod

    def moved(pod: Pod | None) -> Pod | None:
        if pod is None or pod.metadata.namespace != TENANT:
            return pod
        return with_fields(pod, metadata=with_fields(pod.metadata, namespace="rich"))

    def blind(self: JobIndex, change: Change[Pod]) -> None:
        on_pod(self, Change(moved(change.old), moved(change.new)))

    monkeypatch.setattr(JobIndex, "_on_pod", blind)


def _plant_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jobs controller whose cycle waits long for an action on a job of the tenant."""
    perform = JobsController.perform

    async def slow(self: JobsController, action: Any) -> Any:
        if isinstance(action, CreatePod) and action.job.metadata.name == "slow":
            await asyncio.sleep(30.0)
        return await perform(self, action)

    monkeypatch.setattr(JobsController, "perform", slow)


def _plant_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller of groups that opens the gates of one tenant alone."""
    perform = AdoptionController.perform

    async def held(self: AdoptionController, action: Any) -> Any:
        if isinstance(action, ReleaseMember) and action.pod.metadata.namespace != TENANT:
            return None
        return await perform(self, action)

    monkeypatch.setattr(AdoptionController, "perform", held)


def _plant_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jobs controller that remembers every state of every job."""
    on_job = JobIndex._on_job

    def hoarding(self: JobIndex, change: Change[Job]) -> None:
        vars(self).setdefault("hoard", []).append(to_wire(change.new))
        on_job(self, change)

    monkeypatch.setattr(JobIndex, "_on_job", hoarding)


def _plant_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jobs controller that cannot read a label."""
    on_job = JobIndex._on_job

    def strict(self: JobIndex, change: Change[Job]) -> None:
        some = change.new or change.old
        int("0" if some is None else some.metadata.labels.get(names.INDEX, "0"))
        on_job(self, change)

    monkeypatch.setattr(JobIndex, "_on_job", strict)


def _plant_history(kind: type[MemoryHistory]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(world, "MemoryHistory", kind)


def _plant_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that counts only what pods ask for, as the API server does."""
    monkeypatch.setattr(fit, "held_verdict", lambda *_: None)


def _plant_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission that lets anybody say which job is an element."""
    monkeypatch.setattr(admission, "_element", lambda *_: ())
    policies = admission_policies.policies

    def fewer(namespace: str) -> list[Any]:
        found = list(policies(namespace))
        return [each for each in found if not each["metadata"]["name"].endswith("-elements")]

    monkeypatch.setattr(admission_policies, "policies", fewer)


def _plant_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arrays controller that keeps no end of a job that is gone."""
    elements = ArrayIndex.elements

    def forgetful(self: ArrayIndex, *args: Any) -> Any:
        self._gone.clear()
        return elements(self, *args)

    monkeypatch.setattr(ArrayIndex, "elements", forgetful)


def _plant_shared_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that knows no claim of the tenant."""
    allocate = NodeDevices.allocate

    def forgetful(self: NodeDevices, claims: Any, node: str, taken: set[DeviceId]) -> Any:
        return allocate(self, claims, node, {id_ for id_ in taken if "gpu-0" not in id_})

    monkeypatch.setattr(NodeDevices, "allocate", forgetful)


def _plant_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that binds pods while the tenant has claims, whether they get devices or not."""
    allocations = StockScheduler._allocations

    def blind(self: StockScheduler, pod: Pod, node: str) -> Any:
        if any(namespace == TENANT for namespace, _ in self._claims):
            return []
        return allocations(self, pod, node)

    monkeypatch.setattr(StockScheduler, "_allocations", blind)


def _plant_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that does not see what claims of the tenant have."""
    put_claim = DevicePools.put_claim

    def blind(self: DevicePools, key: Any, found: Any) -> bool:
        return key[0] != TENANT and put_claim(self, key, found)

    monkeypatch.setattr(DevicePools, "put_claim", blind)


def _plant_never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that keeps the devices of claims that are gone."""
    put_claim = DevicePools.put_claim

    def hoarding(self: DevicePools, key: Any, found: Any) -> bool:
        return (key[0] != TENANT or found is not None) and put_claim(self, key, found)

    monkeypatch.setattr(DevicePools, "put_claim", hoarding)


def _plant_unmatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher that is busy with the tenant's kinds for as long as jobs of his ask for devices."""
    judge = DeviceTable.judge

    def busy(self: DeviceTable, job: Job, claims: Any) -> Any:
        if job.metadata.namespace == "urgent" and any(key[0] == TENANT for key in self._used_by):
            return UnmatchedDevices("a claim", "a class") if claims else ()
        return judge(self, job, claims)

    monkeypatch.setattr(DeviceTable, "judge", busy)


def _plant_no_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that takes no devices from jobs of a lower class."""
    nominate = Preempting.nominate

    def meek(self: Preempting, group: Any, entry: Any) -> bool:
        wants = any(
            name.startswith(CLAIMED) for r in entry.gang.roles for name, _ in r.member.request
        )
        return not wants and nominate(self, group, entry)

    monkeypatch.setattr(Preempting, "nominate", meek)


_LONG = "${uid:rich:jobs/rich-long}"
_FORGED = owned(
    pod("rich-long-1-worker-0", labels=member_labels("rich-long", _LONG, 0), seconds=0.1,
        exit_code=1),
    names.API_VERSION, "Job", name="rich-long", uid=_LONG,
)  # fmt: skip
_ON_RICH = {"nodeSelector": {names.HOSTNAME: "${node:rich}"}}
_LATER = {"limit": 9, "backoffSeconds": 55, "backoffSecondsMax": 55}
_ELEMENT = owned(
    job("swept-3", seconds=1), names.API_VERSION, "JobArray", name="swept",
    uid="${uid:jobarrays/swept}",
)  # fmt: skip
_OWNED = _ELEMENT["metadata"]["ownerReferences"]
_LABELLED = {**job("labelled"), "metadata": {"name": "labelled", "labels": {names.INDEX: "x"}}}

_CLAIMING = (create("resourceclaimtemplates", template("one")), create("jobs", asking("d", "one")))
#: They take all devices of nodes that no team has.
_TAKING = tuple(create("jobs", asking(f"d{i}", "one")) for i in range(16))

CANARIES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[Call, ...]]] = {
    "nodes": (_plant_taints, (create("pods", pod("p", **_ON_RICH)), Call(Verb.WAIT, wait=3.0))),
    "gangs": (_plant_members, (create("pods", _FORGED), Call(Verb.WAIT, wait=9.0))),
    "late": (
        _plant_stall,
        (create("jobs", job("slow")), Call(Verb.WAIT, wait=1.0), Call(Verb.WAIT, wait=25.0)),
    ),
    "late-guest": (_plant_gate, (create("pods", pod("p")), Call(Verb.WAIT, wait=120.0))),
    "quota": (
        _plant_quota,
        (*(create("jobs", job(f"j{i}", gpus=7, seconds=1, exit_code=1, restart=_LATER), 4.0)
           for i in range(2)), Call(Verb.WAIT, wait=30.0)),
    ),
    "devices-twice": (_plant_shared_devices, (*_CLAIMING, Call(Verb.WAIT, wait=9.0))),
    "devices-without": (_plant_no_devices, (*_CLAIMING, Call(Verb.WAIT, wait=9.0))),
    "devices-uncounted": (_plant_uncounted, (*_CLAIMING, Call(Verb.WAIT, wait=9.0))),
    "devices-kept": (_plant_never_freed, (*_CLAIMING, Call(Verb.WAIT, wait=9.0))),
    "late-unmatched": (_plant_unmatched, (*_CLAIMING, Call(Verb.WAIT, wait=70.0))),
    "late-preemptor": (
        _plant_no_preemption, (*_CLAIMING, *_TAKING, Call(Verb.WAIT, wait=9.0),
                               *(Call(Verb.WAIT) for _ in range(20)), Call(Verb.WAIT, wait=70.0)),
    ),
    "service": (_plant_crash, (create("jobs", _LABELLED), Call(Verb.WAIT, wait=3.0))),
    "accounts": (
        _plant_history(_HistoryByName),
        (create("jobs", job("canary-0", seconds=1)), Call(Verb.WAIT, wait=9.0)),
    ),
    "elements": (
        _plant_elements,
        (create("jobarrays", array("swept", "0-3", template=job("x", seconds=9), parallelism=1)),
         create("jobs", _ELEMENT, 1.0), Call(Verb.WAIT, wait=3.0)),
    ),
    "15": (
        _plant_twice,
        (create("jobarrays", array("swept", "0-3", template=job("x", seconds=2.9), parallelism=1)),
         # The end of the first element comes between this write of the status and the next one.
         patch("jobarrays", "swept", {"spec": {"maxFailed": 1}}, wait=2.8),
         patch("jobs", "swept-0", {"metadata": {"finalizers": None}}, wait=0.35),
         Call(Verb.DELETE, "jobs", "swept-0"), Call(Verb.WAIT, wait=9.0)),
    ),
    "bytes": (
        _plant_history(_GrowingHistory),
        (create("jobs", job("j", seconds=1)), Call(Verb.WAIT, wait=9.0)),
    ),
    "bytes-kept": (
        _plant_leak,
        tuple(create("jobs", job(f"j{i}", seconds=1), 0.5) for i in range(8)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("canary", CANARIES)
def test_a_planted_hole_is_reported_by_its_promise_alone(
    canary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, calls = CANARIES[canary]
    promise = canary.partition("-")[0]
    # An ordinary job first: with the others' gangs it makes sure that the hole is met in passing.
    sequence = (create("jobs", job("first", seconds=1)), *calls)
    second = [()] * (runs.ROUND_SEQUENCES - 1) + [calls] if canary == "bytes-kept" else []
    assert play("canary", [sequence, *second]).broken == ""
    plant(monkeypatch)
    assert play("canary", [sequence, *second]).broken.startswith(f"{promise}: ")


def test_a_claim_that_has_a_device_of_another_teams_node_is_reported_before_its_pod_is_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _plant_taints(monkeypatch)
    asks = pod("p", **_ON_RICH)
    with_claim(asks["spec"], "c/mine")
    calls = (
        create("resourceclaims", claim("mine")), create("pods", asks), Call(Verb.WAIT, wait=3.0)
    )  # fmt: skip
    broken = play("canary", [calls]).broken
    assert broken.startswith("nodes: a device of claim mallory/mine of the tenant is on")


def test_what_breaks_a_promise_is_shrunk_to_the_fewest_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _plant_crash(monkeypatch)
    monkeypatch.setattr(runs, "draw", _draw_late)
    result = explored("shrunk/3", 10)
    assert result.broken.startswith("service: jobs crashed")
    assert [calls for calls in result.calls if calls] == [(create("jobs", _LABELLED),)]
    assert "replay: python -m fairlead.sim.tenants --seed shrunk --world 3\n" in result.text


def _draw_late(rng: random.Random, number: int) -> tuple[Call, ...]:
    calls = tuple(
        create("jobs", job(f"s{number}-{i}", seconds=rng.choice((0.5, 1)))) for i in range(6)
    )
    return calls if number != 6 else (*calls[:3], create("jobs", _LABELLED), *calls[3:])


# Match conditions


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("!has(object.spec.nodeName) || object.spec.nodeName == ''", True),
        ("has(object.spec.tolerations) && object.spec.tolerations.exists(t, t.key == 'b')", True),
        ("object.spec.tolerations.all(t, has(t.value))", False),
        ("object.spec.name in ['a', 'b'] ? object.spec.name.startsWith('a') : false", True),
        ("size(object.spec.tolerations.filter(t, t.key != 'a')) > 0", True),
        ("object.metadata.labels['x/y'] + '!' == 'z!'", True),
        ("(has(object.metadata.labels) && 'u' in object.metadata.labels ? 'p' : '') == ''", True),
    ],
)
def test_match_conditions_are_evaluated_as_the_server_does(expression: str, holds: bool) -> None:
    spec = {"name": "a", "tolerations": [{"key": "a"}, {"key": "b", "value": "c"}]}
    scope = {"object": {"metadata": {"labels": {"x/y": "z"}}, "spec": spec}}
    assert compiled(expression)(scope) is holds


def test_a_condition_that_cannot_be_read_or_has_no_value_does_not_hold() -> None:
    for expression in ("object.spec.", "a ?. b", "has(1)", "object == 'x' 'y'", "(a", "a[1"):
        with pytest.raises(UnknownExpression):
            compiled(expression)
    with pytest.raises(EvaluationError):
        compiled("object.spec.missing == 'x'")({"object": {"spec": {}}})
