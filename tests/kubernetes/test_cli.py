"""The commands of the terminal against a real API server, with right and wrong input."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Result, Shell
from tests.e2e.test_pages import DOCS, run_page
from tests.kubernetes.controlplane import ControlPlane, find_binaries
from tests.kubernetes.operating import (
    controllers,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import JOBS, VOLUMES
from fairlead.kube.client import HttpClient
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import load_scenario

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    # Claims get volumes, and are deleted once their protection is taken off.
    yield from own_plane(
        tmp_path_factory,
        controllers=(
            "persistentvolumeclaim-protection-controller", "persistentvolume-binder-controller",
        ),
    )  # fmt: skip


@pytest.fixture
def shell(cluster: ControlPlane, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(cluster.kubeconfig())
    return shell


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def fairlead(shell: Shell, *arguments: str, code: int | None = 0) -> Result:
    return await asyncio.to_thread(shell.run, *arguments, code=code)


COMMANDS = ("ps", "why x", "logs x", "wait x", "cancel x", "hold x", "release x", "run -- true")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_without_fairlead_is_named_in_one_line(shell: Shell, command: str) -> None:
    """Runs first: no kinds are installed yet."""
    result = shell.run(*command.split(), code=6)
    assert result.err == (
        "error[E601]: Fairlead is not installed on this cluster\n  help: fairlead install\n"
    )


async def test_a_job_is_submitted_shown_held_released_and_awaited(
    client: HttpClient, shell: Shell
) -> None:
    manifest = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Job",
                **job_body("long", 3, seconds=600)}  # fmt: skip
    path = shell.root / "job.yaml"
    path.write_text(json.dumps(manifest))
    async with virtual_nodes(client, 4), controllers(client):

        async def state(name: str, wanted: str) -> None:
            async def reached() -> bool:
                return (await client.get(JOBS, name, namespace="default")).status.state == wanted

            await until(reached)

        submitted = await fairlead(shell, "submit", "-f", str(path))
        assert "long" in submitted.out + submitted.err
        await state("long", "Running")
        shown = await fairlead(shell, "ps")
        assert "long" in shown.out
        assert "Running" in shown.out
        assert "Running" in (await fairlead(shell, "why", "long")).out
        assert "24/32" in (await fairlead(shell, "nodes")).out
        await client.create(JOBS, job_body("later", 3, seconds=0.2), namespace="default")

        async def is_judged() -> bool:
            return (await client.get(JOBS, "later", namespace="default")).status.verdict is not None

        await until(is_judged)
        why = await fairlead(shell, "why", "later")
        assert "needs 24 GPUs, 8 of 32 are free" in why.out
        await fairlead(shell, "hold", "long")
        await fairlead(shell, "wait", "later", "--timeout", "30s")
        await state("long", "Held")
        await fairlead(shell, "release", "long")
        await state("long", "Running")
        twice = await fairlead(shell, "submit", "-f", str(path), code=None)
        assert twice.code != 0
        assert "long" in twice.err
        await fairlead(shell, "cancel", "long")
        await state("long", "Cancelled")
        late = await fairlead(shell, "wait", "long", code=None)
        assert late.code != 0


async def test_what_a_real_api_server_ran_is_recorded_and_simulated_again(
    client: HttpClient, shell: Shell
) -> None:
    async with virtual_nodes(client, 4), controllers(client):

        async def is_in(name: str, state: str) -> bool:
            return (await client.get(JOBS, name, namespace="default")).status.state == state

        # each gang comes when the one before it has ended: the last could pass the one of four
        for name, members, seconds, wanted in (
            ("pair", 2, 2, "Succeeded"), ("four", 4, 1, "Succeeded"), ("one", 1, 600, "Running")
        ):  # fmt: skip
            await client.create(JOBS, job_body(name, members, seconds=seconds), namespace="default")
            await until(functools.partial(is_in, name, wanted))
        noted = await fairlead(shell, "sim", "record", "recording")
    assert "the history cannot be read through the controller" in noted.err
    assert "3 jobs" in noted.err
    assert "4 nodes" in noted.err
    scenario = load_scenario(shell.root / "recording" / "scenario.yaml")
    result = await asyncio.to_thread(ScenarioRun(scenario).run)
    assert (result.summary.jobs, result.summary.violations) == (3, ())
    assert result.summary.finished >= 2


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("tutorial/own-training.md",
         "fairlead submit fit.py --image python:3.13-slim --checkpoint fit-checkpoints"),
        ("howto/data-images-secrets.md", "fairlead submit train.sh --hold"),
    ],
)  # fmt: skip
async def test_the_commands_of_a_page_for_a_cluster_work_as_written(
    page: str, command: str, cluster: ControlPlane, client: HttpClient, shell: Shell
) -> None:
    shell.environment["PATH"] = f"{find_binaries()}{os.pathsep}{shell.environment['PATH']}"
    disk = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": "/data"}}  # fmt: skip
    name = f"disk-{Path(page).stem}"
    await client.create(VOLUMES, {"metadata": {"name": name}, "spec": disk})
    async with virtual_nodes(client, 4), controllers(client):
        text = (DOCS / page).read_text()
        run = functools.partial(run_page, text, shell, kubeconfig=cluster.kubeconfig())
        commands = await asyncio.to_thread(run)
    assert command in commands


async def test_wrong_names_and_values_end_in_a_line_and_a_remedy(
    client: HttpClient, shell: Shell
) -> None:
    for command in ("why", "cancel", "hold", "release", "wait", "logs"):
        result = await fairlead(shell, command, "nobody", code=3)
        assert "error[E300]: job 'nobody' does not exist in namespace 'default'" in result.err
        assert "help: " in result.err
    history = await fairlead(shell, "history", code=5)
    assert "the history cannot be read through the controller" in history.err
    missing = await fairlead(shell, "history", "--history", "/nowhere/h.db", code=None)
    assert "/nowhere/h.db" in missing.err
    odd = await fairlead(shell, "history", "--history", "mysql://ana:pw@db/x", code=None)
    assert "neither a file nor a postgresql:// URL" in odd.err
    assert "pw" not in odd.err
    assert (await fairlead(shell, "status", code=None)).code in (0, 6)
