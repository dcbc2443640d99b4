"""A job that only the nodes of a pool could hold is queued, and the answer names the pool."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import Unanswered

from fairlead.api.cluster.node_pool import (
    BalloonCounts,
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import NODE_POOLS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.api.values.times import format_time
from fairlead.cli.submitting.fit import check_fit
from fairlead.cli.views.fleet import buying_for
from fairlead.cli.views.why import why_text
from fairlead.decide.answers.explain import explain
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.input.errors import CliError
from fairlead.testing.builders import EPOCH, make_job, make_node


def pool(mode: PoolMode = PoolMode.ACTIVE) -> NodePool:
    template = NodeTemplate({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"})
    spec = NodePoolSpec(Provider(ProviderType.SIMULATED), template, 64, mode=mode)
    return NodePool(ObjectMeta("h100"), spec)


class Api(Unanswered):
    def __init__(self, *pools: NodePool, may_list_pools: bool = True) -> None:
        self.pools, self.may_list_pools = pools, may_list_pools

    def list(self, resource: Any, **_: Any) -> list[Any]:
        if resource == NODE_POOLS:
            if not self.may_list_pools:
                raise Forbidden("nodepools is forbidden")
            return list(self.pools)
        return [make_node("n0", cpu=96, gpus=8)] if resource == NODES else []

    def get(self, *_: Any, **__: Any) -> Any:
        raise NotFound("no settings")

    request = get


def test_a_job_that_a_pool_could_hold_is_not_refused() -> None:
    big, api = make_job("big", gpus=8, count=9), Api(pool())
    line = "waits for nodes: it needs 8 nodes of pool h100"
    assert check_fit(api, big, EPOCH).text.endswith(line)  # pyright: ignore[reportArgumentType]


def test_that_the_pool_is_in_dry_run_is_said_with_what_ends_that() -> None:
    api: Any = Api(pool(PoolMode.DRY_RUN))
    text = check_fit(api, make_job("big", gpus=8, count=9), EPOCH).text
    assert text.endswith("pool h100, in dry run (spec.mode: Active lets it buy)")


@pytest.mark.parametrize("api", [Api(), Api(pool(), may_list_pools=False)])
def test_without_such_a_pool_it_is_refused(api: Any) -> None:
    with pytest.raises(CliError, match="hold 1"):
        check_fit(api, make_job("big", gpus=8, count=9), EPOCH)


def test_why_does_not_say_never_of_a_job_that_a_pool_could_hold() -> None:
    job = make_job("big", gpus=8, count=9)
    state = PlacementState.of([make_node("n0", cpu=96, gpus=8)], [job])
    explanation = explain(state, job.metadata.key, EPOCH)
    assert "can never start" in why_text(job, explanation, EPOCH)
    text = why_text(
        job, explanation, EPOCH, buying=buying_for(job, [pool()], {"h100": 8}, EPOCH)
    )  # fmt: skip
    assert text.startswith("Job big waits for nodes: ExceedsCluster")
    assert "none are being bought for it yet; it needs 8 nodes of pool h100\n" in text
    dry = buying_for(job, [pool(mode=PoolMode.DRY_RUN)], {"h100": 8}, EPOCH)
    assert dry is not None
    assert dry.text.startswith(
        "none are being bought for it; it needs 8 nodes of pool h100, in dry"
    )


def external(counts: BalloonCounts, message: str = "") -> NodePool:
    provider = Provider(ProviderType.EXTERNAL)
    made = pool()
    status = NodePoolStatus(balloons=counts, message=message)
    return replace(made, spec=replace(made.spec, provider=provider), status=status)


def test_why_says_that_no_pool_could_hold_what_the_nodes_never_can() -> None:
    job = make_job("big", gpus=8, count=9)
    never = buying_for(job, [pool()], {}, EPOCH, is_impossible=True)
    assert never is not None
    assert (never.text, never.may_help) == (
        "none are being bought for it: no pool could hold it",
        False,
    )
    later = buying_for(job, [pool()], {}, EPOCH)
    assert later is not None
    assert later.text == "none are being bought for it: fairlead fleet plan shows the pools"
    assert buying_for(job, [], {}, EPOCH, is_impossible=True) is None


def test_why_says_what_is_requested_from_the_autoscaler_of_a_pool() -> None:
    job = make_job("big", gpus=8, count=9)

    def said(*pools: NodePool) -> str:
        buying = buying_for(job, pools, {}, EPOCH)
        assert buying is not None
        return buying.text

    requested = BalloonCounts(9, 1, 1, 8, ("default/other", "default/big"))
    text = "8 nodes of pool h100 are requested from its autoscaler, 1 balloon waits for a node"
    assert said(external(requested)) == text
    bought = replace(
        pool(), metadata=ObjectMeta("mine"), status=NodePoolStatus(launches=(
            Launch("t", "", 2, format_time(EPOCH), ("default/big",)),
        )),
    )  # fmt: skip
    assert said(external(requested), bought) == (
        f"2 nodes of pool mine are being bought, ready in about 6m; {text}"
    )
    others = BalloonCounts(9, 1, 8, 8, ("default/other",))
    assert said(external(others, "8 balloons wait")) == (
        "none are requested from another autoscaler for it; h100: 8 balloons wait"
    )
    assert said(external(BalloonCounts())).startswith(
        "none are requested from another autoscaler for it: "
    )
    assert said(external(BalloonCounts()), replace(bought, status=NodePoolStatus())).startswith(
        "none are being bought or requested for it: "
    )
