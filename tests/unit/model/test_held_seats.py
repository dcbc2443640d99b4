"""What jobs hold beyond what their pods ask for, in any order of events."""

from __future__ import annotations

import random
from collections import Counter

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_job, make_nodes, make_placement, make_pod

GPU = "nvidia.com/gpu"


def test_places_count_until_pods_ask_for_as_much_and_again_once_they_have_ended() -> None:
    placement = make_placement(["node-0000", "node-0001"])
    state = ClusterState.of(make_nodes(2), [make_job("a", count=2, gpus=2, placement=placement)])
    held = state.ledger.held_places
    key = ("default", "a")
    assert held.of("default")[key][GPU] == 4
    version = held.version("default")
    for index in range(2):
        state.pod_changed(make_pod_of(state, index))
    assert GPU not in held.of("default").get(key, {})
    assert held.version("default") > version
    state.pod_changed(make_pod_of(state, 1, phase="Succeeded"))
    assert held.of("default")[key][GPU] == 2
    small = make_pod_of(state, 1, gpus=0)
    state.pod_changed(small)
    assert held.of("default")[key][GPU] == 2, "a pod that asks for less covers less"
    state.job_deleted(key)
    assert held.of("default") == held.of("elsewhere") == {}


def make_pod_of(state: ClusterState, index: int, gpus: int = 2, phase: str = "Running") -> Pod:
    job = state.jobs["default", "a"].job
    labels = {names.ROLE: "worker", names.INDEX: str(index), names.ATTEMPT: "1"}
    return make_pod(f"a-1-worker-{index}", labels=labels, owner=job, gpus=gpus, phase=phase)


def test_it_is_the_same_in_any_order_of_events() -> None:
    rng = random.Random(7)
    jobs = [
        make_job(name, count=2, gpus=2, placement=make_placement(["node-0000", "node-0001"]))
        for name in "abc"
    ]
    state = ClusterState.of(make_nodes(2), jobs)
    pods: dict[tuple[str, int], int] = {}
    placed = set("abc")
    for _ in range(600):
        job, index = rng.choice(jobs), rng.randrange(3)
        name = job.metadata.name
        kind = rng.randrange(4)
        if kind == 0:
            state.job_deleted(job.metadata.key)
            placed.discard(name)
        elif kind == 1:
            state.job_changed(job)
            placed.add(name)
        elif kind == 2:
            gpus = rng.choice((0, 1, 2, 5))
            labels = {names.ROLE: "worker", names.INDEX: str(index), names.ATTEMPT: "1"}
            state.pod_changed(make_pod(f"{name}-{index}", gpus=gpus, labels=labels, owner=job))
            pods[name, index] = gpus
        else:
            state.pod_deleted(("default", f"{name}-{index}"))
            pods.pop((name, index), None)
        asked = Counter[str]()
        for (of, _), gpus in pods.items():
            asked[of] += gpus
        expected = {name: 4 - asked[name] for name in placed if asked[name] < 4}
        held = state.ledger.held_places.of("default").items()
        assert state.ledger.held_places.places("default").get(GPU, 0) == 4 * len(placed)
        assert {key[1]: left[GPU] for key, left in held if GPU in left} == expected
