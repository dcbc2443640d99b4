"""The key of an MPI gang: one for an attempt, made before its members need it, gone with them."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.controllers.test_jobs import Cluster, _play, _submit

from fairlead.api import names
from fairlead.api.jobs.job import Restart, Role
from fairlead.api.kubernetes.core import Secret
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import SECRETS
from fairlead.api.status import Forbidden, Unavailable
from fairlead.app.context import unseeded
from fairlead.testing.builders import make_role

MPIRUN = ("python", "-m", "fairlead.member.mpirun", "--", "train")
ROLES: tuple[Role, ...] = (make_role(count=2, command=MPIRUN),)


def secrets(cluster: Cluster) -> dict[str, Secret]:
    return {each.metadata.name: each for each in cluster.client.stored(SECRETS)}


def mounted(cluster: Cluster) -> set[str]:
    """Return the names of the Secrets that the members mount."""
    pods = cluster.pods().values()
    return {v.secret.secret_name for pod in pods for v in pod.spec.volumes if v.secret is not None}


async def _running(cluster: Cluster, roles: tuple[Role, ...] = ROLES, **more: Any) -> None:
    await _submit(cluster, roles=roles, **more)
    await cluster.place(*("n0", "n1")[: roles[0].count])
    await asyncio.sleep(1)
    await cluster.set_pods("Pending")
    await asyncio.sleep(1)
    await cluster.set_pods("Running")
    await asyncio.sleep(1)


def test_all_members_of_an_attempt_mount_one_key_that_goes_with_it() -> None:
    async def play(cluster: Cluster) -> None:
        await _running(cluster, restart=Restart(limit=1))
        job = await cluster.job()
        name = f"train-1-mpi-{job.metadata.uid[:8]}"
        assert mounted(cluster) == set(secrets(cluster)) == {name}
        key = secrets(cluster)[name]
        assert len(b64decode(key.data["key"])) == 32
        assert key.metadata.owner_references[0].uid == job.metadata.uid
        [gang] = cluster.config_maps()
        assert gang.data["FAIRLEAD_MPI_KEY_FILE"] == "/etc/fairlead-mpi/key"
        shown = str((cluster.pods(), gang, job))
        assert key.data["key"] not in shown, "who may read these may not read the key"

        await cluster.set_pods("Failed", "train-1-worker-0")
        await asyncio.sleep(5)
        assert not secrets(cluster)
        for pod in cluster.pods().values():
            assert pod.metadata.labels[names.ATTEMPT] != "1"

    _play(play)


def test_the_next_attempt_has_another_key() -> None:
    keys: list[str] = []

    async def play(cluster: Cluster) -> None:
        await _running(cluster, restart=Restart(limit=3))
        keys.extend(each.data["key"] for each in secrets(cluster).values())
        await cluster.set_pods("Failed", "train-1-worker-0")
        await asyncio.sleep(60)
        await cluster.place("n0", "n1")
        await asyncio.sleep(1)
        await cluster.set_pods("Pending")
        await asyncio.sleep(1)
        keys.extend(each.data["key"] for each in secrets(cluster).values())
        assert [name.split("-mpi-")[0] for name in secrets(cluster)] == ["train-2"]

    _play(play)
    assert len(set(keys)) == 2, keys


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_controller_that_dies_after_any_write_leaves_one_key(cut: int) -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster, roles=ROLES)
        await cluster.place("n0", "n1")
        cluster.client.fail_next("create", *(None,) * cut, Unavailable("cut"))
        await asyncio.sleep(1)
        seen = {name: each.data["key"] for name, each in secrets(cluster).items()}
        await cluster.kill()
        await cluster.set_pods("Pending")
        cluster.start()
        await asyncio.sleep(2)
        found = {name: each.data["key"] for name, each in secrets(cluster).items()}
        assert len(found) == 1
        assert seen in ({}, found), "a member may have read the first one"
        assert len(cluster.config_maps()) == 1

    _play(play)


def test_the_key_is_there_before_what_the_members_wait_for() -> None:
    async def play(cluster: Cluster) -> None:
        await _running(cluster)
        made = [c.plural for c in cluster.client.calls if c.verb == "create"]
        made.remove("configmaps")  # the counter of numbers, before all of them
        assert made.index("secrets") < made.index("configmaps")
        deleted = [c.plural for c in cluster.client.calls if c.verb == "delete"]
        assert not deleted
        await cluster.set_pods("Succeeded")
        await asyncio.sleep(1)
        deleted = [c.plural for c in cluster.client.calls if c.verb == "delete"]
        assert deleted.index("secrets") < deleted.index("configmaps")

    _play(play)


def test_the_controllers_never_read_a_secret() -> None:
    async def play(cluster: Cluster) -> None:
        cluster.client.fail_next("create", None, None, None, Unavailable("cut"))
        await _running(cluster)
        await cluster.kill()
        cluster.start()
        await asyncio.sleep(1)
        await cluster.set_pods("Succeeded")
        await asyncio.sleep(1)
        verbs = {call.verb for call in cluster.client.calls if call.plural == "secrets"}
        assert verbs == {"create", "delete"}

    _play(play)


def test_a_key_that_may_not_be_made_ends_the_attempt_in_the_servers_words() -> None:
    async def play(cluster: Cluster) -> None:
        create = cluster.client.create

        async def refuse(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if resource.plural == "secrets":
                raise Forbidden("exceeded quota: count/secrets=10")
            return await create(resource, *args, **kwargs)

        cluster.client.create = refuse  # type: ignore[method-assign]
        await _submit(cluster, roles=ROLES)
        await cluster.place("n0", "n1")
        await asyncio.sleep(1)
        await cluster.set_pods("Pending")
        await asyncio.sleep(60)
        [attempt] = (await cluster.job()).status.attempts
        assert "count/secrets=10" in attempt.message

    _play(play)


def _annotated(value: str, command: tuple[str, ...]) -> tuple[Role, ...]:
    role = make_role(count=2, command=command)
    metadata = ObjectMeta(annotations={names.MPI: value})
    return (replace(role, template=replace(role.template, metadata=metadata)),)


@pytest.mark.parametrize(
    ("roles", "has_key"),
    [
        (ROLES, True),
        (
            (make_role(count=2, command=("sh", "-c", "exec python -m fairlead.member.mpirun x")),),
            True,
        ),
        (_annotated("true", ("./train.sh",)), True),
        (_annotated("false", MPIRUN), False),
        ((make_role(count=2, command=("torchrun", "train.py")),), False),
        ((make_role(count=1, command=MPIRUN),), False),
    ],
)
def test_only_a_gang_that_starts_mpirun_has_a_key(roles: tuple[Role, ...], has_key: bool) -> None:
    async def play(cluster: Cluster) -> None:
        await _running(cluster, roles)
        assert (await cluster.job()).status.state == "Running"
        assert bool(secrets(cluster)) == bool(mounted(cluster)) == has_key
        await cluster.set_pods("Succeeded")
        await asyncio.sleep(1)
        touched = [call for call in cluster.client.calls if call.plural == "secrets"]
        assert bool(touched) == has_key, "others cost no more writes"

    _play(play)


def test_keys_come_from_the_operating_system_and_in_a_simulation_from_its_seed() -> None:
    assert isinstance(unseeded("gang-keys"), random.SystemRandom)
    found: list[str] = []

    async def play(cluster: Cluster) -> None:
        await _running(cluster)
        found.extend(each.data["key"] for each in secrets(cluster).values())

    _play(play)
    _play(play)
    first, second = found
    assert first == second
