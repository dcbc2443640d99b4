"""What all tests share: the real control plane, processes, and repeatable property tests.

`plane` is started once, for the tests marked `kubernetes`. Hypothesis draws the same examples each
time; FAIRLEAD_RANDOM=1 lets it look for new ones.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.own_plane import WITHOUT, own_plane
from tests.planted import leaks

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts us in the background ignores Ctrl-C for us and for all that we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
#: No test is timed: on a busy machine any example may take long.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.register_profile("random", UNTIMED, derandomize=False, print_blob=True)
#: Of planted bugs only whether they are noticed matters, not the smallest example.
settings.register_profile(
    "unshrunk",
    UNTIMED,
    derandomize=True,
    phases=[p for p in Phase if p not in (Phase.shrink, Phase.explain)],
)
#: Folders whose files share a process, and with it real nodes, or the syntax trees of all modules.
_IN_ONE = ("tests/kubernetes/nodes/", "tests/tidy/")
settings.load_profile("random" if os.environ.get("FAIRLEAD_RANDOM") else "repeatable")


class _ByFile(LoadFileScheduling):
    """Files go to the next free process, but those of some folders all to one."""

    def _split_scope(self, nodeid: str) -> str:
        shared = (folder for folder in _IN_ONE if nodeid.startswith(folder))
        return next(shared, super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection() -> None:
    """Let the garbage collector rest: what is collected stays until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it run again, pass over all that was collected, and look for garbage less often.

    With the default of 700 new objects it looks through all of a test's world every few
    milliseconds, and finds next to nothing.
    """
    gc.freeze()
    gc.set_threshold(50_000, 5, 5)
    gc.enable()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start etcd, kube-apiserver and a few controllers; skip the test where there are none."""
    yield from own_plane(tmp_path_factory, syncs=True)  # the doctor asks how long that takes


@pytest.fixture(scope="session", autouse=True)
def no_log_has_a_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search the logs of all clusters of this run for their secrets, once it has ended."""
    yield
    assert leaks(tmp_path_factory.getbasetemp()) == []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what did not run for want of a real control plane."""
    skipped = terminalreporter.stats.get("skipped", [])
    texts = [str(report.longrepr[-1]) for report in skipped if isinstance(report.longrepr, tuple)]
    missing = [text for text in texts if WITHOUT in text]
    if missing:
        reason = missing[0].removeprefix("Skipped: ")
        terminalreporter.write_line(f"the kubernetes suite: {len(missing)} tests skipped: {reason}")
