"""What is particular to scale sets of Azure: Microsoft's SDK, answered within the process."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.e2e.azure_server import (
    GROUP,
    OTHER_ZONE,
    RESOURCE_GROUP,
    SUBSCRIPTION,
    ZONE,
    AzureFault,
    AzureServer,
    FakeSet,
    connect_to,
)
from tests.e2e.clouds import AzureCloud, Chaos, azure_id, direct, launched, until_done
from tests.e2e.rest_server import InProcess

from fairlead.cloud.errors import Stated
from fairlead.cloud.microsoft import azure_api
from fairlead.cloud.microsoft.azure import AzureProvider
from fairlead.cloud.microsoft.azure_api import WORDS, Azure, Busy
from fairlead.cloud.microsoft.azure_launch import (
    TAG_MAX,
    TAGS_MAX,
    OpenLaunch,
    ScaleSetLaunches,
    ledger_of,
)
from fairlead.cloud.microsoft.azure_scale_set import ScaleSetMachine
from fairlead.cloud.provider import (
    CloudError,
    LaunchPending,
    LaunchRequest,
    OutOfCapacity,
    RefusedByProvider,
)
from fairlead.model.health.machines import InstanceState
from fairlead.sim.loop import run

HERE, THERE = f"{GROUP}-{ZONE}", f"{GROUP}-{OTHER_ZONE}"


class World:
    """A server in virtual time, and providers of it."""

    def __init__(self) -> None:
        self.server = AzureServer(
            asyncio.get_running_loop().time, operation_seconds=3.0, create_seconds=20.0,
            delete_seconds=30.0, has_buckets=True,
        )  # fmt: skip
        self.connect = connect_to("http://azure.test", InProcess(self.server))

    @property
    def here(self) -> FakeSet:
        return self.server.sets[HERE]

    def provider(self, *zones: str, run: Callable[..., Any] = direct) -> AzureProvider:
        azure = Azure(run, self.connect)
        return AzureProvider(azure, GROUP, zones or (ZONE,), AzureCloud.options)

    def ids(self, scale_set: str = HERE) -> set[str]:
        return {azure_id(*each) for each in self.server.machines() if each[0] == scale_set}


def in_world(story: Callable[[World], Any]) -> None:
    async def main() -> None:
        await story(World())

    run(main())


def ask(token: str, count: int = 2, domain: str = ZONE) -> LaunchRequest:
    return LaunchRequest(token, GROUP, count, domain)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_launch_takes_no_time_of_its_caller_and_few_calls() -> None:
    async def story(world: World) -> None:
        world.server.create_seconds = 110.0
        provider = world.provider()
        with pytest.raises(LaunchPending, match="2 machines were asked for"):
            await provider.launch(ask("t1"))
        assert now() == 0.0
        assert set(await launched(provider, ask("t1"))) == world.ids()
        assert len(world.ids()) == 2
        assert 110 <= now() <= 130
        assert world.server.calls["launch"] == 1
        assert world.server.calls["list"] + world.server.calls["operation"] <= 25

    in_world(story)


def test_a_new_process_finds_a_launch_again_while_lists_are_late() -> None:
    async def story(world: World) -> None:
        world.server.lag_seconds = 60.0
        with pytest.raises(LaunchPending):
            await world.provider().launch(ask("t1"))
        await asyncio.sleep(30)
        assert len(world.ids()) == 2, "made, and not listed yet"
        assert set(await launched(world.provider(), ask("t1"))) == world.ids()
        assert world.server.calls["launch"] == 1, "not sent again"
        assert world.server.made.total() == 2

    in_world(story)


def test_a_launch_is_known_after_a_day_and_after_many_others() -> None:
    async def story(world: World) -> None:
        first = await launched(world.provider(), ask("t0"))
        for turn in range(1, 20):
            provider = world.provider()
            made = await launched(provider, ask(f"t{turn}"))
            await provider.terminate(made)
            await asyncio.sleep(3600)
        assert await launched(world.provider(), ask("t0")) == first
        assert set(first) == world.ids()
        assert world.server.made.total() == 40

    in_world(story)


def test_launches_of_a_scale_set_go_one_after_another_each_with_machines_of_its_own() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1", 3))
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t2", 2))
        assert world.server.calls["launch"] == 1
        first, second = await asyncio.gather(
            launched(provider, ask("t1", 3)), launched(provider, ask("t2", 2))
        )
        assert (len(first), len(second)) == (3, 2)
        assert {*first, *second} == world.ids()
        assert len(world.ids()) == 5
        again = world.provider()
        assert await launched(again, ask("t2", 2)) == second
        assert await launched(again, ask("t1", 3)) == first

    in_world(story)


def test_a_launch_that_is_never_asked_for_again_keeps_no_other_from_being_sent() -> None:
    async def story(world: World) -> None:
        with pytest.raises(LaunchPending):
            await world.provider().launch(ask("t1", 1))
        made = await launched(world.provider(), ask("t2", 2))
        assert len(made) == 2
        assert len(world.ids()) == 3

    in_world(story)


def test_two_processes_with_the_same_launch_buy_its_machines_once() -> None:
    async def story(world: World) -> None:
        async def slow(question: Callable[[], Any]) -> Any:
            await asyncio.sleep(1)
            return question()

        async def step(provider: AzureProvider) -> None:
            with pytest.raises(LaunchPending):
                await provider.launch(ask("t1"))

        providers = world.provider(run=slow), world.provider(run=slow)
        await asyncio.gather(*(step(each) for each in providers))
        assert world.server.calls["launch"] == 2, "both had read that it was not sent"
        first, second = [await launched(each, ask("t1")) for each in providers]
        assert first == second
        assert set(first) == world.ids()
        assert world.server.made.total() == 2

    in_world(story)


def test_a_change_of_the_scale_set_between_reading_and_writing_is_kept() -> None:
    async def story(world: World) -> None:
        async def meddle(question: Callable[[], Any]) -> Any:
            answer = question()
            if world.server.calls["list"] == 1 and "owner" not in world.here.tags:
                world.here.tags["owner"] = "ann"
                world.here.etag += 1
            return answer

        assert len(await launched(world.provider(run=meddle), ask("t1"))) == 2
        assert world.server.calls["launch"] == 2, "refused, and sent again"
        assert world.here.tags["owner"] == "ann"
        assert world.here.tags["team"] == "ml"
        assert world.server.made.total() == 2

    in_world(story)


def test_of_a_launch_that_fails_in_part_the_rest_is_deleted() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE] = 1
        made = await launched(world.provider(), ask("t1", 3))
        assert set(made) == world.ids()
        assert len(made) == 1
        world.server.capacity[ZONE] = 5
        await asyncio.sleep(120)
        assert len(world.ids()) == 1
        assert (world.server.listed(), world.here.capacity) == (1, 1)
        assert world.server.chosen == []

    in_world(story)


def test_a_new_process_deletes_no_machine_of_a_launch_that_it_is_not_asked_for() -> None:
    async def story(world: World) -> None:
        made = await launched(world.provider(), ask("t1", 2))
        await asyncio.sleep(86_400)
        vm = world.here.vms["1"]  # a job runs there, and Azure does not know its power state
        vm.provisioning, vm.power = "Failed", ""
        assert len(await launched(world.provider(), ask("t2", 1))) == 1
        await asyncio.sleep(120)
        assert world.server.calls["terminate"] == 0
        listed = (await world.provider().instances()).instances
        assert {each.id for each in listed} > set(made), "the fleet decides about it"

    in_world(story)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AllocationFailed", OutOfCapacity),
        ("ZonalAllocationFailed", OutOfCapacity),
        ("OverconstrainedZonalAllocationRequest", OutOfCapacity),
        ("SkuNotAvailable", OutOfCapacity),
        ("QuotaExceeded", OutOfCapacity),
        ("AuthorizationFailed", RefusedByProvider),
        ("InvalidParameter", RefusedByProvider),
    ],
)
@pytest.mark.parametrize("place", ["answer", "operation", "machines"])
def test_why_there_are_no_machines_is_told_apart(
    code: str, kind: type[CloudError], place: str
) -> None:
    async def story(world: World) -> None:
        if place == "answer":
            world.server.faults.append(AzureFault("launch", (409, code)))
        elif place == "operation":
            world.server.operation_errors.append(code)
        else:
            world.server.machine_errors.extend([code] * 2)
        with pytest.raises(kind, match=code) as raised:
            await launched(world.provider(), ask("t1"))
        assert type(raised.value) is kind
        assert now() < 60, "another domain is tried soon"
        await asyncio.sleep(120)
        assert (world.server.machines(), world.server.listed()) == ({}, 0)
        assert len(await launched(world.provider(), ask("t2"))) == 2

    in_world(story)


def test_machines_that_azure_could_not_make_are_not_ordered_once_more() -> None:
    async def story(world: World) -> None:
        world.server.capacity[ZONE], world.server.keeps_failed = 0, False
        for turn in range(3):
            with pytest.raises(OutOfCapacity):
                await launched(world.provider(), ask(f"t{turn}", 4))
        assert (world.here.capacity, world.server.listed()) == (4, 0)
        world.server.capacity[ZONE] = 100
        made = await launched(world.provider(), ask("t9", 5))
        assert set(made) == world.ids()
        assert len(made) == 5

    in_world(story)


def test_an_operation_that_never_ends_or_is_not_kept_holds_nothing_up_for_ever() -> None:
    async def story(world: World) -> None:
        world.server.operation_seconds, world.server.create_seconds = 1e9, 1e9
        made = await launched(world.provider(), ask("t1"))
        assert len(made) == 2, "they are listed, and may yet be made"
        assert now() < 2000

    async def not_kept(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t2"))
        world.server.operations.clear()
        assert set(await launched(provider, ask("t2"))) == world.ids()

    in_world(story)
    in_world(not_kept)


def test_an_operation_that_another_one_ends_is_no_failure() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        world.server.end_operations("launch", "OperationPreempted")
        made = await launched(provider, ask("t1"))
        assert set(made) == world.ids()
        await provider.terminate(made)
        world.server.end_operations("terminate", "OperationPreempted")
        await asyncio.sleep(60)
        assert len(world.ids()) == 2
        await provider.terminate(made)
        await asyncio.sleep(60)
        assert world.ids() == set()

    in_world(story)


def test_machines_of_a_launch_without_an_answer_are_counted_by_the_launch_alone() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        old = await launched(provider, ask("t0", 1))
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        await asyncio.sleep(10)
        assert world.server.listed() == 3
        assert [each.id for each in (await provider.instances()).instances] == [*old]
        await launched(provider, ask("t1"))
        assert len((await provider.instances()).instances) == 3

    in_world(story)


@pytest.mark.parametrize("call", ["read", "list", "operation"])
def test_to_be_refused_a_look_is_no_answer_to_a_launch(call: str) -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        with pytest.raises(LaunchPending):
            await provider.launch(ask("t1"))
        await asyncio.sleep(5)
        if call == "read":
            provider = world.provider()
        world.server.faults.append(AzureFault(call, (403, "AuthorizationFailed")))
        with pytest.raises(CloudError, match="AuthorizationFailed") as raised:
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

        async def cut(question: Callable[[], Any]) -> Any:
            if world.server.calls["list"] == 1:
                world.server.faults.append(AzureFault("list", (500, "InternalServerError")))
            return question()

        world.server.calls.clear()
        found = await world.provider(run=cut).instances()
        assert not found.is_complete
        assert len(found.instances) == 2

    in_world(story)


def test_nothing_is_launched_on_a_list_that_was_cut() -> None:
    async def story(world: World) -> None:
        await launched(world.provider(), ask("t1", 5))
        world.server.page_max = 2

        async def cut(question: Callable[[], Any]) -> Any:
            if world.server.calls["list"] % 2:
                world.server.faults.append(AzureFault("list", (500, "InternalServerError")))
            return question()

        world.server.calls.clear()
        with pytest.raises(CloudError, match="the list of machines was cut"):
            await launched(world.provider(run=cut), ask("t2"))
        assert world.server.calls["launch"] == 0

    in_world(story)


def test_the_scale_sets_of_a_pool_are_listed_together_and_one_may_fail() -> None:
    async def story(world: World) -> None:
        provider = world.provider(ZONE, OTHER_ZONE)
        here = await launched(provider, ask("t1", 1))
        there = await launched(provider, ask("t2", 1, OTHER_ZONE))
        assert set(there) == world.ids(THERE)
        found = await provider.instances()
        assert {(each.id, each.domain) for each in found.instances} == {
            (here[0], ZONE), (there[0], OTHER_ZONE),
        }  # fmt: skip
        world.server.faults.append(AzureFault("list", (500, "InternalServerError")))
        found = await provider.instances()
        assert [each.id for each in found.instances] == [*there]
        assert not found.is_complete

    in_world(story)


def test_a_pool_without_domains_is_one_scale_set() -> None:
    async def story(world: World) -> None:
        azure = Azure(direct, world.connect)
        provider = AzureProvider(azure, GROUP, (), AzureCloud.options)
        made = await launched(provider, ask("t1", 1, ""))
        assert made == (azure_id(GROUP, "0"),)
        (listed,) = (await provider.instances()).instances
        assert (listed.id, listed.domain) == (made[0], "westeurope")

    in_world(story)


def test_only_machines_of_the_pools_own_scale_sets_are_ended() -> None:
    async def story(world: World) -> None:
        provider = world.provider(ZONE, OTHER_ZONE)
        here = await launched(provider, ask("t1", 1))
        there = await launched(provider, ask("t2", 1, OTHER_ZONE))
        others = (
            here[0].replace(SUBSCRIPTION, "0" * 36), here[0].replace("research", "other"),
            azure_id("a100", "0"), f"{here[0]}x", "azure:///", "aws:///a/i-1", "",
        )  # fmt: skip
        await provider.terminate(others)
        assert world.server.calls["terminate"] == 0
        await world.provider(ZONE).terminate(there)  # its domain was removed from the pool
        await asyncio.sleep(60)
        assert (world.ids(), world.ids(THERE)) == (set(here), set())

    in_world(story)


def test_the_tag_of_the_scale_set_names_the_pool_and_is_read_now_and_then() -> None:
    async def story(world: World) -> None:
        await launched(world.provider(), ask("t1", 1))
        provider = world.provider()
        del world.here.tags["fairlead-pool"]
        assert [each.pool for each in (await provider.instances()).instances] == [""]
        world.here.tags["Fairlead-Pool"] = GROUP
        world.server.calls.clear()
        for _ in range(20):
            await asyncio.sleep(15)
            found = await provider.instances()
        assert [each.pool for each in found.instances] == [GROUP]
        assert world.server.calls["read"] == 1

    in_world(story)


def test_a_deletion_is_not_sent_again_while_it_is_under_way() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 3))
        for _ in range(5):
            await provider.terminate(made[:2])
            await asyncio.sleep(4)
        assert world.server.calls["terminate"] == 1
        await provider.terminate(made)
        assert world.server.calls["terminate"] == 2, "the third is new"
        await asyncio.sleep(100)
        assert world.ids() == set()
        assert world.here.capacity == 0

    in_world(story)


def test_a_deletion_whose_operation_never_ends_is_sent_again() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        world.server.operation_seconds = 1e9
        await provider.terminate(made)
        for seconds, calls in ((1790, 1), (20, 2)):
            await asyncio.sleep(seconds)
            await provider.terminate(made)
            assert world.server.calls["terminate"] == calls

    in_world(story)


def test_a_new_process_may_delete_what_is_being_deleted() -> None:
    async def story(world: World) -> None:
        made = await launched(world.provider(), ask("t1", 2))
        await world.provider().terminate(made[:1])
        await asyncio.sleep(5)
        await world.provider().terminate(made)
        await asyncio.sleep(60)
        assert world.ids() == set()
        await world.provider().terminate(made)  # gone: no mistake

    in_world(story)


def test_a_deletion_that_failed_says_so_and_is_sent_again() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 1))
        world.server.operation_errors.append("AuthorizationFailed")
        await provider.terminate(made)
        await asyncio.sleep(10)
        with pytest.raises(RefusedByProvider, match="AuthorizationFailed"):
            await provider.terminate(made)
        await provider.terminate(made)
        await asyncio.sleep(60)
        assert world.ids() == set()

    in_world(story)


def test_to_delete_what_is_gone_while_the_list_is_cut_is_tried_again() -> None:
    async def story(world: World) -> None:
        made = await launched(world.provider(), ask("t1", 3))
        await world.provider().terminate(made[:1])
        await asyncio.sleep(60)
        world.server.page_max = 1

        async def cut(question: Callable[[], Any]) -> Any:
            if world.server.calls["list"] == 1:
                world.server.faults.append(AzureFault("list", (500, "InternalServerError")))
            return question()

        world.server.calls.clear()
        provider = world.provider(run=cut)
        with pytest.raises(CloudError, match="not an active") as raised:
            await provider.terminate(made)
        assert type(raised.value) is CloudError
        await provider.terminate(made)
        await asyncio.sleep(60)
        assert world.ids() == set()

    in_world(story)


def test_many_machines_are_ended_with_few_calls() -> None:
    async def story(world: World) -> None:
        provider = world.provider()
        made = await launched(provider, ask("t1", 250))
        await provider.terminate(made)
        assert world.server.calls["terminate"] == 3
        await asyncio.sleep(60)
        assert (await provider.instances()).instances == ()
        assert world.server.chosen == []

    in_world(story)


def test_a_new_machine_with_the_instance_id_of_a_deleted_one_is_not_deleted() -> None:
    async def story(world: World) -> None:
        world.server.draw_id = lambda group: next(i for i in range(1000) if str(i) not in group.vms)
        provider = world.provider()
        made = await launched(provider, ask("t1", 2))
        await provider.instances()
        await provider.terminate(made[:1])
        await asyncio.sleep(60)
        again = await launched(provider, ask("t2", 1))
        assert again == made[:1], "the same instance id"
        await provider.instances()
        await provider.terminate(made[:1])  # a controller that has not seen yet that it is gone
        await asyncio.sleep(60)
        assert world.ids() == set(made)
        assert len((await provider.instances()).instances) == 1, "until the first is known as gone"
        await asyncio.sleep(180)
        assert len((await provider.instances()).instances) == 2
        await provider.terminate(made[:1])
        await asyncio.sleep(60)
        assert world.ids() == {made[1]}

    in_world(story)


def test_a_scale_set_that_azure_changes_by_itself_is_refused_with_all_reasons() -> None:
    async def story(world: World) -> None:
        world.here.zones = ["1", "2"]
        world.here.properties = {
            "orchestrationMode": "Flexible", "automaticRepairsPolicy": {"enabled": True},
            "upgradePolicy": {"mode": "Automatic"},
        }  # fmt: skip
        with pytest.raises(RefusedByProvider) as raised:
            await launched(world.provider(), ask("t1"))
        for said in ("mode is not Uniform", "overprovision=false", "upgradePolicy.mode=Manual",
                     "automaticRepairsPolicy.enabled=false", "spans the zones 1, 2"):  # fmt: skip
            assert said in str(raised.value)
        assert world.server.calls["launch"] == 0
        assert (await world.provider().instances()).is_complete, "its machines are still seen"

    in_world(story)


def test_a_scale_set_that_does_not_number_its_machines_is_refused() -> None:
    async def story(world: World) -> None:
        await launched(world.provider(), ask("t1", 1))
        (vm,) = world.here.vms.values()
        vm.id = "h100_1a2b3c4d"
        with pytest.raises(RefusedByProvider, match="orchestration mode Uniform"):
            await world.provider().instances()

    in_world(story)


def test_a_scale_set_with_too_many_tags_is_refused() -> None:
    async def story(world: World) -> None:
        world.here.tags = {f"tag-{i}": "" for i in range(45)}
        with pytest.raises(RefusedByProvider, match="has 45 tags; Azure allows 50"):
            await launched(world.provider(), ask("t1"))

    in_world(story)


@pytest.mark.parametrize(("said", "seconds"), [("", 2), ("45", 45), ("1200", 600), ("soon", 2)])
def test_throttling_is_no_refusal_and_pauses_all_calls_as_azure_says(
    said: str, seconds: int
) -> None:
    async def story(world: World) -> None:
        provider = world.provider(ZONE, OTHER_ZONE)
        await provider.instances()
        fault = AzureFault("launch", (429, "TooManyRequests"), retry_after=said)
        world.server.faults.append(fault)
        with pytest.raises(CloudError, match="TooManyRequests") as raised:
            await launched(provider, ask("t1"))
        assert type(raised.value) is CloudError
        calls = world.server.calls.total()
        with pytest.raises(CloudError, match=f"Azure throttles; asked again in {seconds} s"):
            await provider.instances()
        await asyncio.sleep(seconds - 1)
        with pytest.raises(CloudError, match="Azure throttles"):
            await provider.instances()
        assert world.server.calls.total() == calls
        await asyncio.sleep(2)
        await provider.instances()
        assert len(await launched(provider, ask("t1"))) == 2
        assert world.server.made.total() == 2

    in_world(story)


def test_a_busy_hour_stays_within_half_of_the_rates() -> None:
    async def story(world: World) -> None:
        world.server.create_seconds = world.server.delete_seconds = 5.0
        provider = world.provider()

        async def watch() -> None:
            while True:
                await provider.instances()
                await asyncio.sleep(15)

        async def use() -> None:
            turn = 0
            while True:
                turn += 1
                made = await launched(provider, ask(f"t{turn}", 2))
                while set(made) & world.ids():
                    with contextlib.suppress(Busy):
                        await provider.terminate(made)
                    await asyncio.sleep(1)

        tasks = [asyncio.create_task(watch()), asyncio.create_task(use())]
        await asyncio.sleep(3600)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        assert not world.server.throttled
        calls = world.server.calls
        assert 60 <= calls["launch"] <= 6 + 2 * 60, "half of 12 and of 4 a minute"
        assert calls["terminate"] <= 6 + 2 * 60
        assert calls["read"] <= 18 + 6 * 60
        assert calls["operation"] <= 22 + 7.5 * 60

    in_world(story)


@pytest.mark.parametrize(
    ("provisioning", "power", "state"),
    [
        ("Creating", "", InstanceState.STARTING),
        ("Creating", "starting", InstanceState.RUNNING),
        ("Creating", "running", InstanceState.RUNNING),
        ("Succeeded", "running", InstanceState.RUNNING),
        ("Succeeded", "", InstanceState.RUNNING),
        ("Updating", "running", InstanceState.RUNNING),
        ("Failed", "running", InstanceState.RUNNING),  # an extension has failed
        ("Failed", "", InstanceState.STARTING),  # never a node: the fleet replaces it
        ("Succeeded", "deallocated", InstanceState.STOPPING),
        ("Succeeded", "stopped", InstanceState.STOPPING),
        ("Updating", "deallocating", InstanceState.STOPPING),
        ("Deleting", "running", InstanceState.STOPPING),
    ],
)
def test_what_azure_says_of_a_machine_is_its_state(
    provisioning: str, power: str, state: InstanceState
) -> None:
    assert ScaleSetMachine("1", "vm", provisioning, power).state is state


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("AllocationFailed", "", OutOfCapacity),
        ("OverconstrainedAllocationRequest", "", OutOfCapacity),
        ("SkuNotAvailable", "", OutOfCapacity),
        ("QuotaExceeded", "", OutOfCapacity),
        ("OperationNotAllowed", "exceeding approved H100 Cores quota", OutOfCapacity),
        ("OperationNotAllowed", "another operation is in progress", CloudError),
        ("OperationNotAllowed", "a single placement group has 100 at most", RefusedByProvider),
        ("SubscriptionRequestsThrottled", "", azure_api.Throttled),
        ("OperationPreempted", "", CloudError),
        ("Conflict", "", CloudError),
        ("InternalExecutionError", "", CloudError),
        ("LinkedAuthorizationFailed", "", RefusedByProvider),
        ("ScopeLocked", "", RefusedByProvider),
        ("RequestDisallowedByPolicy", "", RefusedByProvider),
    ],
)
def test_codes_of_azure_have_kinds(code: str, message: str, kind: type[CloudError]) -> None:
    assert type(WORDS.error_of([Stated(code, message)])) is kind


# The ledger


_IDS = st.sets(st.integers(0, 2_000), max_size=40)
_DIGESTS = st.text("0123456789abcdef", min_size=10, max_size=10)


@given(st.dictionaries(_DIGESTS, _IDS, max_size=8), _DIGESTS, _IDS, st.integers(1, 1000))
def test_a_ledger_is_read_as_it_was_written(
    launched_: dict[str, set[int]], digest: str, before: set[int], count: int
) -> None:
    kept = {each: tuple(str(n) for n in sorted(ids)) for each, ids in launched_.items()}
    open_ = OpenLaunch(digest, count, tuple((n, n) for n in sorted(before)))
    tags = {"Other": "x", **{k.upper(): v for k, v in ScaleSetLaunches(open_, kept).tags().items()}}
    assert all(len(value) <= TAG_MAX for value in tags.values())
    assert len(tags) <= TAGS_MAX + 1
    found = ledger_of(tags)
    assert found.open == open_
    assert [*found.launched.items()] == [*kept.items()][len(kept) - len(found.launched) :]
    if sum(map(len, kept.values())) < 100:
        assert found.launched == kept
    assert ledger_of({"Other": "x"}) == ScaleSetLaunches()


def test_a_ledger_keeps_the_latest_launches_and_every_machine_that_was_there() -> None:
    async def story(world: World) -> None:
        rng = random.Random(1)
        world.server.draw_id = lambda _: rng.choice(
            [i for i in range(9_000) if str(i) not in world.here.vms]
        )
        provider, all_made = world.provider(), set[str]()
        earlier = made = tuple[str, ...]()
        for turn in range(8):  # nowhere do the instance ids follow one another
            earlier, made = made, await launched(provider, ask(f"t{turn}", 30))
            assert not all_made & set(made)
            all_made |= set(made)
        assert all_made == world.ids()
        assert await launched(world.provider(), ask("t7", 30)) == made
        assert await launched(world.provider(), ask("t6", 30)) == earlier

    in_world(story)


@pytest.mark.parametrize("text", ["0123", "0123456789:0", "0123456789:0z", "0123456789:0.",
                                  "0123456789+1:00;0123456789+2:00", ";", "zzzzzzzzzz:00",
                                  "0123456789:0zzzzz1"])  # fmt: skip
def test_a_ledger_that_cannot_be_read_stops_launches_with_the_remedy(text: str) -> None:
    async def story(world: World) -> None:
        world.here.tags["fairlead-launches-0"] = text
        with pytest.raises(RefusedByProvider, match="delete these tags"):
            await launched(world.provider(), ask("t1"))
        assert world.server.calls["launch"] == 0

    in_world(story)


# Anything at any time


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_and_dies_no_machine_is_bought_twice_or_forgotten(seed: int) -> None:
    async def story(world: World) -> None:
        server = world.server
        server.operation_seconds, server.create_seconds = rng.random() * 30, rng.random() * 40
        server.lag_seconds, server.page_max = rng.random() * 60, rng.choice((2, 500))
        if seed % 2:
            server.draw_id = lambda group: rng.choice(
                [i for i in range(500) if str(i) not in group.vms]
            )

        def make() -> AzureProvider:
            return world.provider(run=Chaos(rng))

        have: set[str] = set()
        for turn in range(3):
            made = await until_done(
                rng, make, lambda each, turn=turn: launched(each, ask(f"t{turn}", 3))
            )
            assert not have & set(made)
            have |= set(made)
            assert have == world.ids()
        assert server.made.total() == len(have) == 9
        gone = set(sorted(have)[:5])
        while gone & world.ids():
            await until_done(rng, make, lambda each: each.terminate(tuple(sorted(gone))))
            await asyncio.sleep(5)
        assert world.ids() == have - gone
        assert server.chosen == [], "it never chose what to delete"
        await asyncio.sleep(300)
        assert (server.listed(), world.here.capacity) == (4, 4)

    rng = random.Random(seed)
    in_world(story)


# The SDK and its credentials


def test_without_the_extra_a_pool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(azure_api, "import_module", missing)
    provider = AzureProvider(Azure(direct), GROUP, [ZONE], AzureCloud.options)
    with pytest.raises(RefusedByProvider, match=r"pip install 'fairlead\[azure\]'"):
        asyncio.run(provider.instances())


def test_without_credentials_a_pool_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")  # no metadata server
    provider = AzureProvider(Azure(direct), GROUP, [ZONE], AzureCloud.options)
    with pytest.raises(RefusedByProvider, match="az login"):
        asyncio.run(provider.instances())


def test_the_credentials_go_to_no_host_that_an_answer_names() -> None:
    class Poller:
        @staticmethod
        def result() -> dict[str, str]:
            return {"Azure-AsyncOperation": "https://evil.test/subscriptions/x?api-version=1"}

    assert azure_api.begun(Poller) == "/subscriptions/x?api-version=1"
    assert RESOURCE_GROUP.lower() != RESOURCE_GROUP, "node ids have it in lower case"
