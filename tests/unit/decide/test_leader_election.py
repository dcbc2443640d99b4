"""When a lease of somebody else may be taken, as far as the record itself decides it."""

from __future__ import annotations

import pytest

from fairlead.api.kubernetes.core import Lease, LeaseSpec
from fairlead.api.meta import ObjectMeta
from fairlead.decide.leader_election import LeaseTimes, LeaveLease, SeenLease, TakeLease, campaign

TIMES = LeaseTimes()


def held(seconds: int) -> SeenLease:
    spec = LeaseSpec(holder_identity="other", lease_duration_seconds=seconds)
    return SeenLease(
        Lease(metadata=ObjectMeta(name="l", resource_version="1"), spec=spec), since=100.0
    )


@pytest.mark.parametrize(("seconds", "over_after"), [(60, 60.0), (15, 15.0), (1, 15.0)])
def test_the_longer_of_both_durations_counts_the_holders_or_our_own(
    seconds: int, over_after: float
) -> None:
    before = campaign(held(seconds), "me", TIMES, now=100.0 + over_after - 0.1, wall=0.0)
    assert before == LeaveLease(pytest.approx(100.0 + over_after))
    after = campaign(held(seconds), "me", TIMES, now=100.0 + over_after, wall=0.0)
    assert isinstance(after, TakeLease)
