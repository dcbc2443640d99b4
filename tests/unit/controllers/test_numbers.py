"""Numbers of jobs: dense, given once, whoever else gives numbers and whatever stops in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import (
    ApiError,
    StatusDetails,
    TooManyRequests,
    Unavailable,
)
from fairlead.install.manifests import PART_OF
from fairlead.runtime.kept.numbers import NEXT, Numbers, NumbersOptions
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

OPTIONS = NumbersOptions(namespace="fairlead-system")


def _make(client: FakeClient, highest: int = 0) -> Numbers:
    return Numbers(client, OPTIONS, highest=lambda: highest)


async def _given(numbers: Numbers, uids: str) -> list[int]:
    return [await numbers.of(uid) for uid in uids]


def test_numbers_are_dense_from_1_on_and_the_same_for_the_same_object() -> None:
    async def main() -> None:
        numbers = _make(FakeClient())
        assert await _given(numbers, "abcdefgh") == [1, 2, 3, 4, 5, 6, 7, 8]
        assert await _given(numbers, "hca") == [8, 3, 1]

    run(main())


def test_the_counter_is_known_as_an_object_of_the_installation() -> None:
    async def main() -> None:
        client = FakeClient()
        await _make(client).of("a")
        [counter] = client.stored(CONFIG_MAPS)
        assert counter.metadata.labels.items() >= {PART_OF}

    run(main())


def test_a_thousand_numbers_cost_twenty_requests() -> None:
    async def main() -> None:
        client = FakeClient()
        numbers = _make(client)
        for i in range(1_000):
            await numbers.of(f"uid-{i}")
        assert client.count("get") + client.count("patch") + client.count("create") <= 20

    run(main())


def test_two_leaders_that_give_numbers_side_by_side_never_give_the_same() -> None:
    async def main() -> None:
        client = FakeClient()
        one, two = _make(client), _make(client)
        asked = [(each.of(f"{n}-{i}")) for i in range(300) for n, each in ((1, one), (2, two))]
        given = await asyncio.gather(*asked)
        assert len(set(given)) == 600

    run(main())


def test_an_orderly_end_gives_the_rest_back_and_a_crash_loses_at_most_its_block() -> None:
    async def main() -> None:
        client = FakeClient()
        first = _make(client)
        task = asyncio.create_task(first.run())
        assert await _given(first, "ab") == [1, 2]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        with pytest.raises(Unavailable):
            await first.of("late")
        crashed = _make(client)
        assert await _given(crashed, "c") == [3]
        assert await _given(_make(client), "d") == [3 + OPTIONS.block]

    run(main())


def test_a_former_leader_that_ends_late_takes_nothing_back() -> None:
    async def main() -> None:
        client = FakeClient()
        former, later = _make(client), _make(client)
        task = asyncio.create_task(former.run())
        await _given(former, "a")
        there = await _given(later, "b")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await _given(_make(client), "c") > there

    run(main())


@pytest.mark.parametrize("data", [None, {}, {NEXT: "many"}, {NEXT: "-7"}, {NEXT: "3"}])
def test_a_counter_that_is_lost_or_wrong_never_leads_to_a_number_that_an_object_has(
    data: dict[str, str] | None,
) -> None:
    async def main() -> None:
        client = FakeClient()
        if data is not None:
            body = {"metadata": {"name": OPTIONS.name}, "data": data}
            await client.create(CONFIG_MAPS, body, namespace=OPTIONS.namespace)
        assert await _given(_make(client, highest=41), "ab") == [42, 43]

    run(main())


def test_a_number_is_asked_for_again_after_an_error_of_the_api() -> None:
    async def main() -> None:
        client = FakeClient()
        client.fail_next("get", Unavailable("no answer"))
        numbers = _make(client)
        with pytest.raises(ApiError):
            await numbers.of("a")
        assert await numbers.of("a") == 1

    run(main())


def test_callers_that_wait_side_by_side_send_one_request_and_none_before_the_server_asked() -> None:
    async def main() -> None:
        client = FakeClient()
        wait = StatusDetails(retry_after_seconds=5)
        client.fail_next("get", TooManyRequests("busy", details=wait))
        numbers = _make(client)
        refused = await asyncio.gather(*map(numbers.of, "abc"), return_exceptions=True)
        assert [type(each) for each in refused] == [TooManyRequests] * 3
        await asyncio.sleep(4.9)
        with pytest.raises(TooManyRequests):
            await numbers.of("d")
        assert client.count("get") == 1
        await asyncio.sleep(0.2)
        assert await _given(numbers, "abcd") == [1, 2, 3, 4]

    run(main())
