"""The fixture `target`: an empty API server. Each test that asks for it runs against two of them.

`embedded` is the embedded server over a loopback socket, fresh for each test. `kubernetes` is a
real kube-apiserver, one for the whole session, emptied after each test (`make test-kubernetes`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.conformance.accepted import accepted_tests
from tests.conformance.embedded import embedded_target
from tests.conformance.target import Target
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.real import Cleaner, connected

BOTH = ["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)]


@pytest.fixture
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    """The server under test."""
    if request.param == "embedded":
        async with embedded_target() as target:
            yield target
        return
    plane: ControlPlane = request.getfixturevalue("plane")
    async with connected(plane) as target:
        yield target
        await Cleaner(target).clean()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", BOTH, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect those tests to fail on the real server that are known to; a pass is an error."""
    reasons = accepted_tests()
    for item in items:
        if not item.get_closest_marker("kubernetes"):
            continue
        name = item.name.replace("[kubernetes]", "").replace("[kubernetes-", "[")
        reason = reasons.get(name)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
