"""The same requests to the embedded and to a real API server: no difference without a reason."""

from __future__ import annotations

import pytest
from tests.conformance.accepted import Accepted, accepted_answers
from tests.conformance.embedded import embedded_target
from tests.conformance.recorder import Difference, Recorder, differences
from tests.conformance.scenarios import SCENARIOS, Scenario
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.real import Cleaner, connected

pytestmark = pytest.mark.kubernetes
SHOWN_MAX = 60


@pytest.fixture(scope="module")
def used() -> set[Accepted]:
    """The accepted differences that were met."""
    return set()


async def compare(plane: ControlPlane, scenario: Scenario) -> list[Difference]:
    async with embedded_target() as ours, connected(plane) as theirs:
        embedded, real = Recorder(ours), Recorder(theirs)
        try:
            await scenario(embedded)
            await scenario(real)
        finally:
            await Cleaner(theirs).clean()
    return differences(scenario.__name__, embedded, real)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
async def test_both_servers_answer_the_same(
    scenario: Scenario, plane: ControlPlane, used: set[Accepted]
) -> None:
    accepted = accepted_answers()
    new: list[Difference] = []
    for difference in await compare(plane, scenario):
        reasons = [each for each in accepted if each.covers(difference)]
        used.update(reasons)
        if not reasons:
            new.append(difference)
    shown = "\n".join(str(difference) for difference in new[:SHOWN_MAX])
    assert not new, f"{len(new)} new differences:\n{shown}"


def test_every_accepted_difference_is_still_there(used: set[Accepted]) -> None:
    if not used:
        pytest.skip("the comparison did not run")
    idle = [each for each in accepted_answers() if each not in used]
    assert not idle
