"""An upgrade from an earlier version of the project and back, while a gang runs.

FAIRLEAD_UPGRADE_FROM names the version: a revision of the repository that the checkout has. Its own
tools build its image, and its own chart installs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import (
    SETTINGS,
    STAYS,
    container_ids,
    leader,
    submit,
    until,
)
from tools.cluster.cluster import Cluster
from tools.cluster.images import ROOT, fairlead_name
from tools.cluster.install import NAMESPACE, RELEASE, helm, install, push_chart
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes
REVISION = os.environ.get("FAIRLEAD_UPGRADE_FROM", "")
_BUILD = """
from tools.cluster.images import build_archive
print(build_archive(lambda text: None, with_examples=False))
"""


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Path]:
    """The tree of the earlier version."""
    if not REVISION:
        pytest.skip("FAIRLEAD_UPGRADE_FROM names no revision")
    tree = tmp_path / "earlier"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), REVISION], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def build(tree: Path) -> Path:
    """Return the archive of the image that a tree's own tools build."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD], cwd=tree, check=True, text=True,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'src'}"},
    )  # fmt: skip
    return Path(done.stdout.splitlines()[-1])


def test_a_gang_runs_through_an_upgrade_from_an_earlier_version_and_back(
    earlier: Path, cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    here = ("--namespace", NAMESPACE, "--wait", "--timeout", "240s")
    digest = cluster.push_images(build(earlier))[fairlead_name()]
    checkpoints = cluster.layout.directory / "shared" / "checkpoints"
    helm(cluster, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    chart = push_chart(cluster, earlier / "deploy" / "helm" / "fairlead")
    values = f"checkpointRoot={checkpoints},image.digest={digest}"
    helm(cluster, "install", RELEASE, chart, "--plain-http", "--set", values, *here)

    def runs(name: str) -> None:
        """A job of two members runs to its end, and the gang has not noticed anything."""
        submit(client, tmp_path, "echo done", "--name", name, "--nodes", "2", "--cpus", "100m")
        job = client.until_state(name, "Succeeded", "Failed")
        assert (job["status"]["state"], job["status"]["attempt"]) == ("Succeeded", 1), name
        if before:
            steady = client.job("steady")["status"]
            assert (steady["state"], steady["attempt"]) == ("Running", 1), name
            assert container_ids(cluster, "steady") == before, name

    before: dict[str, str] = {}
    runs("earlier")
    submit(client, tmp_path, STAYS, "--name", "steady", "--nodes", "2", "--cpus", "100m")
    client.until_state("steady", "Running")
    before = container_ids(cluster, "steady")
    first = leader(cluster)
    install(cluster, print, with_examples=True, settings=SETTINGS)
    until("a replica of this version leads", lambda: leader(cluster) not in ("", first))
    runs("upgraded")
    second = leader(cluster)
    helm(cluster, "rollback", RELEASE, *here)
    until("a replica of the earlier version leads", lambda: leader(cluster) not in ("", second))
    runs("downgraded")
    install(cluster, print, with_examples=True, settings=SETTINGS)
    runs("upgraded-again")
    client.run("cancel", "steady")
