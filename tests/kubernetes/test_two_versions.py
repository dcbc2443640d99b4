"""v1beta1 of an installation, on a real API server that asks the Service of the webhook.

The controllers act in their own name: all that conversion takes of them is in the rights that they
are given. And it goes with `fairlead uninstall`, also where nothing converts any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, is_served, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_install import accountant, install, operator, rules_of, run_cli, serve
from tests.kubernetes.test_own_webhook import BETA_JOBS, beta_job, is_beta_served
from tests.kubernetes.test_uninstall import all_gone
from tests.kubernetes.webhook_route import FLAG

from fairlead.api.resources import JOBS
from fairlead.api.schema.crd import definition_names
from fairlead.api.status import ApiError, InternalError, NotFound
from fairlead.install.manifests import Install
from fairlead.install.values import Crds, Values
from fairlead.kube.client import HttpClient
from fairlead.webhook.definitions import DEFINITIONS

pytestmark = pytest.mark.kubernetes
GROUP = "apiextensions.k8s.io"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, flags=(FLAG,))


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await client.close()


@pytest.fixture
def with_beta(tmp_path: Path) -> tuple[str, ...]:
    """Arguments of an installation with v1beta1."""
    values = tmp_path / "values.yaml"
    values.write_text("crds: {v1beta1: true}\n")
    return ("--values", str(values))


async def strategies(client: HttpClient) -> set[str]:
    found = [await client.get(DEFINITIONS, name) for name in definition_names()]
    return {each.spec.conversion.strategy for each in found}


async def convert(cluster: ControlPlane, client: HttpClient) -> set[tuple[str, str, str]]:
    """Run a replica in its own name until a job has gone both ways; return what it used."""
    async with (
        accountant(cluster, client) as account,
        operator(account, "only", converts=True) as replica,
    ):
        await serve(client, replica)
        await is_beta_served(client)
        made = await client.create(BETA_JOBS, beta_job("both", team="red"), namespace="default")
        assert made["spec"]["teamName"] == "red"

        async def is_judged() -> bool:
            """True once the controllers have written, which the other version shows, too."""
            seen = await client.get(BETA_JOBS, "both", namespace="default")
            return "submissionTime" in seen.get("status", {})

        await until(is_judged)
        stored = await client.get(JOBS.raw, "both", namespace="default")
        assert stored["spec"]["team"] == "red"
        return account.used


async def test_the_controllers_convert_by_their_own_rights_and_uninstalling_ends_it(
    cluster: ControlPlane, client: HttpClient, with_beta: tuple[str, ...]
) -> None:
    assert install(cluster, *with_beta)[0] == 0
    used = await convert(cluster, client)
    chosen = Install(values=Values(crds=Crds(v1beta1=True)))
    granted = {
        (GROUP, resource, verb)
        for rule in rules_of("ClusterRole", chosen)
        if GROUP in rule.get("apiGroups", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {right for right in used if right[0] == GROUP} == granted

    # Nothing converts any more: v1beta1 cannot be read, and yet all of it can be taken away.
    assert await strategies(client) == {"Webhook"}

    async def is_lost() -> bool:
        try:
            await client.get(BETA_JOBS, "both", namespace="default")
        except InternalError as error:
            return "conversion webhook" in error.message
        except ApiError:
            return False
        return False

    await until(is_lost)
    done = run_cli(cluster, "uninstall", "--keep-crds", "--yes")
    assert done.returncode == 0, done.stderr
    assert await strategies(client) == {"None"}
    kept = await client.get(JOBS.raw, "both", namespace="default")
    assert kept["spec"]["team"] == "red"
    with pytest.raises(NotFound):
        await client.get(BETA_JOBS, "both", namespace="default")
    found = [each.metadata.name for each in (await client.list(JOBS)).items]
    assert found == ["both"]


async def test_uninstalling_with_the_jobs_ends_where_nothing_converts_them(
    cluster: ControlPlane, client: HttpClient, with_beta: tuple[str, ...]
) -> None:
    assert install(cluster, *with_beta)[0] == 0
    await convert(cluster, client)
    done = run_cli(cluster, "uninstall", "--delete-jobs", "--yes")
    assert done.returncode == 0, done.stderr
    await until(lambda: all_gone(client))
    assert not await is_served(client, JOBS)
