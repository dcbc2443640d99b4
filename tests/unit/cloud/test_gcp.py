"""What is particular to managed instance groups: Google's SDK, answered within the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.clouds import Chaos, GcpCloud, direct, launched, until_done
from tests.e2e.gcp_server import (
    GROUP,
    OTHER_ZONE,
    PROJECT,
    ZONE,
    GcpFault,
    GcpServer,
    connect_to,
)
from tests.e2e.rest_server import InProcess

from fairlead.cloud.errors import Stated
from fairlead.cloud.google import gcp_api
from fairlead.cloud.google.gcp import GcpProvider
from fairlead.cloud.google.gcp_api import WORDS, Gcp
from fairlead.cloud.google.gcp_group import Managed
from fairlead.cloud.google.gcp_launch import machine_names
from fairlead.cloud.provider import (
    CloudError,
    LaunchPending,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.model.health.machines import InstanceState
from fairlead.sim.loop import run


class World:
    """A server in virtual time, and providers of it."""

    def __init__(self) -> None:
        self.server = GcpServer(
            asyncio.get_running_loop().time,
            operation_seconds=3.0, create_seconds=20.0, delete_seconds=30.0,
        )  # fmt: skip
        self.connect = connect_to("http://gcp.test", InProcess(self.server))

    def provider(
        self, *zones: str, run: Callable[..., Any] = direct, **options: str
    ) -> GcpProvider:
        return GcpProvider(
            Gcp(run, self.connect), GROUP, zones or (ZONE,), {"project": PROJECT, **options}
        )

    def names(self, token: str, count: int) -> tuple[str, ...]:
        return machine_names(GROUP, token, count)


def in_world(story: Callable[[World], Any]) -> None:
    async def main() -> None:
        await story(World())

    run(main())


def ask(token: str, count: int = 2, domain: str = ZONE) -> LaunchRequest:
    return LaunchRequest(token, GROUP, count, domain)


def ids(*machines: str, zone: str = ZONE) -> tuple[str, ...]:
    return tuple(f"gce://{PROJECT}/{zone}/{name}" for name in machines)


def test_a_launch_takes_no_time_of_its_caller_and_few_calls() -> None:
    async def story(world: World) -> None:
        world.server.create_seconds = 110.0
        provider, loop = world.provider(), asyncio.get_running_loop()
        with pytest.raises(LaunchPending, match="operation operation-1 is under way"):
            await provider.launch(ask("t1"))
        assert loop.time() == 0.0
        assert await launched(provider, ask("t1")) == ids(*world.names("t1", 2))
        assert 110 <= loop.time() <= 130
        assert world.server.calls["launch"] == 1
        assert world.server.calls["list"] + world.server.calls["operation"] <= 15

    in_world(story)


def test_a_new_process_finds_the_operation_again_while_lists_are_late() -> None:
    async def story(world: World) -> None:
        world.server.lag_seconds = 60.0
        with pytest.raises(LaunchPending):
            await world.provider().launch(ask("t1"))
        await asyncio.sleep(30)
        assert len(world.server.machines()) == 2, "made, and not listed yet"
        again = world.provider()
        assert await launched(again, ask("t1")) == ids(*world.names("t1", 2))
        assert world.server.calls["launch"] == 2
        assert len(world.server.operations) == 1, "one request id, one operation"
        assert world.server.made.total() == 2

    in_world(story)


def test_machines_are_found_by_name_after_google_has_forgotten_the_request_id() -> None:
    async def story(world: World) -> None:
        first = await launched(world.provider(), ask("t1"))
        world.server.request_ids.clear()
        await asyncio.sleep(86_400)
        assert await launched(world.provider(), ask("t1")) == first
        assert world.server.calls["launch"] == 1, "not even asked"

    in_world(story)


def test_an_operation_that_never_ends_or_is_forgotten_holds_nothing_up_for_ever() -> None:
    async def story(world: World) -> None:
        world.server.operation_seconds = float("inf")
        with pytest.raises(OutOfCapacity, match="no machine within 120 s"):
            await launched(world.provider(), ask("t1"))
        assert asyncio.get_running_loop().time() < 800
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t2"))
        world.server.operations.clear()
        with pytest.raises(OutOfCapacity, match="no machine within 120 s"):
            await launched(provider, ask("t2"))

    in_world(story)


def test_of_a_launch_that_fails_in_part_the_rest_is_tried_no_more() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 1
        made = await launched(world.provider(), ask("t1", 3))
        assert made == ids(*world.server.machines())
        assert len(made) == 1
        world.server.capacity[ZONE] = 5
        await asyncio.sleep(120)
        assert len(world.server.machines()) == 1
        assert world.server.attempts() == []

    in_world(story)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", OutOfCapacity),
        ("QUOTA_EXCEEDED", OutOfCapacity),
        ("IP_SPACE_EXHAUSTED", OutOfCapacity),
        ("PERMISSIONS_ERROR", RefusedByProvider),
        ("INVALID_FIELD_VALUE", RefusedByProvider),
    ],
)
@pytest.mark.parametrize("place", ["operation_errors", "attempt_errors"])
def test_why_there_are_no_machines_is_told_apart(
    code: str, kind: type[CloudError], place: str
) -> None:
    async def story(world: World) -> None:
        getattr(world.server, place).extend([code] * 1000)
        with pytest.raises(kind, match=code) as raised:
            await launched(world.provider(), ask("t1"))
        assert type(raised.value) is kind
        assert asyncio.get_running_loop().time() < 60, "another zone is tried soon"
        world.server.attempt_errors.clear()
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_an_attempt_that_fails_for_a_moment_is_left_to_the_group() -> None:
    async def story(world: World) -> None:
        world.server.attempt_errors.extend(["INTERNAL_ERROR", "RESOURCE_NOT_READY"])
        assert len(await launched(world.provider(), ask("t1"))) == 2
        world.server.attempt_errors.extend(["INTERNAL_ERROR"] * 1000)
        with pytest.raises(OutOfCapacity, match="INTERNAL_ERROR"):
            await launched(world.provider(), ask("t2"))
        await asyncio.sleep(60)
        assert world.server.attempts() == []

    in_world(story)


def test_machines_of_a_launch_without_an_answer_are_counted_by_the_launch_alone() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        await asyncio.sleep(10)
        assert world.server.attempts()
        assert (await provider.instances()).instances == ()
        await launched(provider, ask("t1"))
        assert len((await provider.instances()).instances) == 2

    async def begun_during_a_list(world: World) -> None:
        delays = [5.0]

        async def late(question: Callable[[], Any]) -> Any:
            await asyncio.sleep(delays.pop() if delays else 0.0)
            return question()

        provider = world.provider(run=late)
        listing = asyncio.create_task(provider.instances())
        await asyncio.sleep(1.0)
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        assert (await listing).instances == ()
        assert world.server.attempts()

    in_world(story)
    in_world(begun_during_a_list)


def test_to_be_refused_a_look_is_no_answer_to_a_launch() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        await asyncio.sleep(30)
        world.server.faults.append(GcpFault("list", (403, "forbidden")))
        with pytest.raises(CloudError) as raised:
            await launched(provider, ask("t1"))
        assert type(raised.value) is CloudError
        assert len(await launched(provider, ask("t1"))) == 2

    in_world(story)


def test_a_list_comes_in_pages_and_says_when_one_is_missing() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 5))
        world.server.page_max = 2
        whole = await provider.instances()
        assert tuple(each.id for each in whole.instances) == made
        assert whole.is_complete
        run_page = _FailsAt(2, world.server)
        cut = await world.provider(run=run_page).instances()
        assert not cut.is_complete
        assert len(cut.instances) == 2

    in_world(story)


class _FailsAt:
    """Plants an error before the n-th call."""

    def __init__(self, at: int, server: GcpServer) -> None:
        self._left, self._server = at, server

    async def __call__(self, question: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0:
            self._server.faults.append(GcpFault("list", (503, "backendError")))
        return question()


def test_the_groups_of_a_pool_are_listed_together_and_one_zone_may_fail() -> None:
    async def story(world: World) -> None:
        provider = world.provider(ZONE, OTHER_ZONE)
        here = await launched(provider, ask("t1", 1))
        there = await launched(provider, ask("t2", 1, OTHER_ZONE))
        assert there == ids(*world.names("t2", 1), zone=OTHER_ZONE)
        found = await provider.instances()
        assert {(each.id, each.domain) for each in found.instances} == {
            (here[0], ZONE), (there[0], OTHER_ZONE),
        }  # fmt: skip
        world.server.faults.append(GcpFault("list", (503, "backendError")))
        found = await provider.instances()
        assert [each.id for each in found.instances] == [*there]
        assert not found.is_complete
        await provider.terminate((here[0], there[0], "gce://other/zone/machine"))
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_the_label_of_the_group_names_the_pool_and_is_read_now_and_then() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        await launched(provider, ask("t1", 1))
        world.server.label = ""
        assert [each.pool for each in (await provider.instances()).instances] == [""]
        world.server.label = GROUP
        for _ in range(20):
            await asyncio.sleep(15)
            found = await provider.instances()
        assert [each.pool for each in found.instances] == [GROUP]
        assert world.server.calls["group"] == 2

    in_world(story)


def test_a_deletion_is_not_sent_again_while_it_is_under_way() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 3))
        world.server.operation_seconds = 20.0
        for _ in range(5):
            await provider.terminate(made[:2])
            await asyncio.sleep(2)
        assert world.server.calls["terminate"] == 1
        await provider.terminate(made)
        assert world.server.calls["terminate"] == 2, "the third is new"
        await asyncio.sleep(100)
        assert world.server.machines() == {}

    in_world(story)


def test_a_deletion_whose_operation_never_ends_is_sent_again() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        world.server.operation_seconds = float("inf")
        await provider.terminate(made)
        world.server.operation_seconds = 1.0
        await asyncio.sleep(590)
        await provider.terminate(made)
        assert len(world.server.machines()) == 1
        await asyncio.sleep(20)
        await provider.terminate(made)
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_a_zone_that_the_pool_names_no_more_keeps_its_launches_and_ends_its_machines() -> None:
    async def story(world: World) -> None:
        with pytest.raises(LaunchPending):
            await world.provider(ZONE, OTHER_ZONE).launch(ask("t1", 2, OTHER_ZONE))
        after = world.provider(ZONE)
        made = await launched(after, ask("t1", 2, OTHER_ZONE))
        assert made == ids(*world.names("t1", 2), zone=OTHER_ZONE)
        assert world.server.made.total() == 2, "and none in the other zone"
        await after.terminate((*made, "gce://ml", "aws:///a/i-1", ""))
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_a_deletion_that_failed_says_so_and_is_sent_again() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        world.server.operation_errors.append("PERMISSIONS_ERROR")
        await provider.terminate(made)
        await asyncio.sleep(10)
        with pytest.raises(RefusedByProvider, match="PERMISSIONS_ERROR"):
            await provider.terminate(made)
        await provider.terminate(made)
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_many_machines_are_ended_with_few_calls() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1000)) + await launched(provider, ask("t2", 5))
        world.server.calls.clear()
        await provider.terminate(made)
        assert world.server.calls["terminate"] == 2
        await asyncio.sleep(60)
        assert (await provider.instances()).instances == ()

    in_world(story)


def test_a_machine_that_is_gone_may_be_listed_for_a_while_as_leaving() -> None:
    async def story(world: World) -> None:
        world.server.lag_seconds = 30.0
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        await provider.terminate(made)
        await asyncio.sleep(45)
        assert world.server.machines() == {}
        listed = (await provider.instances()).instances
        assert [each.state for each in listed] == [InstanceState.STOPPING]
        await asyncio.sleep(30)
        assert (await provider.instances()).instances == ()

    in_world(story)


@pytest.mark.parametrize(
    ("action", "status", "state"),
    [
        ("NONE", "RUNNING", InstanceState.RUNNING),
        ("REFRESHING", "RUNNING", InstanceState.RUNNING),
        ("CREATING", "", InstanceState.STARTING),
        ("CREATING", "PROVISIONING", InstanceState.STARTING),
        ("VERIFYING", "RUNNING", InstanceState.STARTING),
        ("RECREATING", "TERMINATED", InstanceState.STARTING),  # its group repairs it
        ("RESTARTING", "STOPPING", InstanceState.STARTING),
        ("NONE", "REPAIRING", InstanceState.STARTING),  # Google repairs its host
        ("NONE", "TERMINATED", InstanceState.STOPPING),  # preempted, and not repaired
        ("NONE", "PENDING_STOP", InstanceState.STOPPING),
        ("DELETING", "RUNNING", InstanceState.STOPPING),
        ("ABANDONING", "RUNNING", InstanceState.STOPPING),
    ],
)
def test_what_a_group_does_to_a_machine_is_its_state(
    action: str, status: str, state: InstanceState
) -> None:
    assert Managed("m", action, status).state is state


def test_a_machine_that_its_group_recreates_is_the_same_machine() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        vm = next(iter(world.server.vms.values()))
        vm.action, vm.status = "RECREATING", ""
        (listed,) = (await provider.instances()).instances
        assert (listed.id, listed.state) == (made[0], InstanceState.STARTING)

    in_world(story)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "rateLimitExceeded"), (403, "userRateLimitExceeded"), (429, "RESOURCE_EXHAUSTED")],
)
def test_throttling_is_no_refusal_and_pauses_all_calls(status: int, reason: str) -> None:
    async def story(world: World) -> None:
        provider = world.provider(ZONE, OTHER_ZONE)
        await provider.instances()
        world.server.faults.append(GcpFault("launch", (status, reason)))
        with pytest.raises(CloudError, match=reason) as raised:
            await provider.launch(ask("t1"))
        assert type(raised.value) is CloudError
        calls = world.server.calls.total()
        with pytest.raises(CloudError, match="GCP throttles; asked again in 2 s"):
            await provider.instances()
        assert world.server.calls.total() == calls
        await asyncio.sleep(3)
        assert len(await launched(provider, ask("t1"))) == 2
        assert world.server.made.total() == 2

    in_world(story)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", OutOfCapacity),
        ("quotaExceeded", OutOfCapacity),
        ("GPU_STOCKOUT", OutOfCapacity),
        ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", gcp_api.Throttled),
        ("rateLimitExceeded", gcp_api.Throttled),
        ("resourceNotReady", CloudError),
        ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", CloudError),
        ("INTERNAL_ERROR", CloudError),
        ("RESOURCE_NOT_FOUND", RefusedByProvider),
        ("invalid", RefusedByProvider),
    ],
)
def test_codes_of_google_have_kinds(code: str, kind: type[CloudError]) -> None:
    assert type(WORDS.error_of([Stated(code, "")])) is kind


# Resize requests


def test_a_resize_request_makes_all_machines_or_none() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 2
        provider = world.provider(resizeRequests="true", runSeconds="3600")
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1", 3))
        await asyncio.sleep(30)
        with pytest.raises(LaunchPending, match="waits: ZONE_RESOURCE_POOL_EXHAUSTED"):
            await provider.launch(ask("t1", 3))
        assert world.server.machines() == {}
        assert (await provider.instances()).instances == (), "what waits is no machine"
        world.server.capacity[ZONE] = 3
        assert await launched(provider, ask("t1", 3)) == ids(*world.names("t1", 3))
        assert [each.run_seconds for each in world.server.requests.values()] == [3600]

    in_world(story)


def test_a_resize_request_that_waits_too_long_is_cancelled() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 0
        provider = world.provider(resizeRequests="true", queueSeconds="120")
        with pytest.raises(OutOfCapacity, match="found no capacity"):
            await launched(provider, ask("t1"))
        assert 120 <= asyncio.get_running_loop().time() <= 160
        world.server.capacity[ZONE] = 10
        await asyncio.sleep(60)
        assert world.server.machines() == {}

    in_world(story)


def test_a_resize_request_that_succeeds_while_it_is_cancelled_has_its_machines() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 0
        provider = world.provider(resizeRequests="true", queueSeconds="0")
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        while not world.server.calls["cancel"]:
            await asyncio.sleep(1)
            with pytest.raises(LaunchPending):
                await provider.launch(ask("t1"))
        world.server.requests[world.names("t1", 1)[0].rpartition("-")[0]].try_at = 0.0
        world.server.capacity[ZONE] = 2
        assert len(await launched(provider, ask("t1"))) == 2
        assert len(world.server.machines()) == 2

    in_world(story)


def test_a_new_process_finds_the_resize_request_again() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 0
        for forgets in (False, True):
            provider = world.provider(resizeRequests="true")
            with pytest.raises(LaunchPending):
                await provider.launch(ask("t1"))
            await asyncio.sleep(10)
            if forgets:
                world.server.request_ids.clear()
        world.server.capacity[ZONE] = 2
        assert len(await launched(world.provider(resizeRequests="true"), ask("t1"))) == 2
        assert len(world.server.requests) == 1
        assert world.server.made.total() == 2

    in_world(story)


def test_machines_are_found_after_their_resize_request_was_deleted() -> None:
    async def story(world: World) -> None:
        first = await launched(world.provider(resizeRequests="true"), ask("t1"))
        world.server.requests.clear()
        world.server.request_ids.clear()
        assert await launched(world.provider(resizeRequests="true"), ask("t1")) == first
        assert world.server.made.total() == 2

    in_world(story)


@pytest.mark.parametrize(
    ("code", "kind"), [("QUOTA_EXCEEDED", OutOfCapacity), ("INVALID_USAGE", RefusedByProvider)]
)
def test_a_resize_request_that_cannot_be_made_says_why(code: str, kind: type[CloudError]) -> None:
    async def story(world: World) -> None:
        world.server.operation_errors.append(code)
        with pytest.raises(kind, match=code):
            await launched(world.provider(resizeRequests="true"), ask("t1"))

    in_world(story)


# Anything at any time


@pytest.mark.parametrize("resizes", ["false", "true"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_fails_and_dies_no_machine_is_bought_twice_or_forgotten(
    seed: int, resizes: str
) -> None:
    async def story(world: World) -> None:
        server = world.server
        server.operation_seconds, server.create_seconds = rng.random() * 30, rng.random() * 40
        server.lag_seconds, server.page_max = rng.random() * 60, rng.choice((3, 500))

        def make() -> GcpProvider:
            return world.provider(run=Chaos(rng), resizeRequests=resizes, queueSeconds="9999")

        have: set[str] = set()
        for turn in range(3):
            made = await until_done(
                rng, make, lambda each, turn=turn: each.launch(ask(f"t{turn}", 3))
            )
            have |= {id_.rpartition("/")[2] for id_ in made}
            assert have == set(server.machines())
        assert server.made.total() == len(have) == 9
        left = set(server.machines())
        gone = ids(*sorted(left)[:5])
        while len(server.machines()) > 4:
            await until_done(rng, make, lambda each: each.terminate(gone))
            await asyncio.sleep(5)
        assert set(server.machines()) == left - {id_.rpartition("/")[2] for id_ in gone}

    rng = random.Random(seed)
    in_world(story)


# The SDK and its credentials


def test_without_the_extra_a_pool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(gcp_api, "import_module", missing)
    provider = GcpProvider(Gcp(direct), GROUP, [ZONE], {"project": PROJECT})
    with pytest.raises(RefusedByProvider, match=r"pip install 'fairlead\[gcp\]'"):
        asyncio.run(provider.instances())


def test_without_credentials_a_pool_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    provider = GcpProvider(Gcp(direct), GROUP, [ZONE], {"project": PROJECT})
    with pytest.raises(RefusedByProvider, match="gcloud auth application-default login"):
        asyncio.run(provider.instances())


def test_names_of_machines_are_valid_whatever_the_group_is_called() -> None:
    for name in machine_names("a" * 39 + "-" + "b" * 23, "x_Y", 1000):
        assert len(name) <= 63
        assert name.replace("-", "").isalnum()
        assert name == name.lower()
    assert machine_names("g", "t1", 1) != machine_names("g", "t2", 1)
    assert GcpCloud.zone == ZONE
