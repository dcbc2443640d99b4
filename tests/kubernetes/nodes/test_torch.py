"""The PyTorch example between containers of two nodes: torchrun, and Gloo over names of DNS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import MOST_OF_A_NODE, pods, until
from tools.cluster.cluster import Cluster
from tools.cluster.images import ImageError, build_torch_archive, version
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """The image with PyTorch, in the registry of the cluster."""
    try:
        cluster.push_images(build_torch_archive(print))
    except ImageError as error:
        pytest.skip(f"the image with PyTorch cannot be made here: {error}")
    return f"fairlead-torch:{version()}"


def test_torchrun_meets_over_names_and_goes_on_from_the_checkpoint_after_a_kill(
    cluster: Cluster, client: Client, image: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/sh\n"
        # torchrun 1.13 does not read its own defaults with Python 3.11.
        "export PET_REDIRECTS=9:1 PET_TEE=9:1\n"
        'exec sh examples/torch/train.sh "$@"\n'
    )
    client.run(
        "submit", str(script), "--name", "torch", "--image", image, "--chdir", "/work",
        "--nodes", "2", "--cpus", MOST_OF_A_NODE, "--memory", "1Gi", "--retries", "1",
        "--", "--steps", "200", "--step-seconds", "0.1",
    )  # fmt: skip

    def says(text: str) -> bool:
        return text in client.run("logs", "torch", "--task", "0", code=None)

    client.until_state("torch", "Running")
    until("a checkpoint is saved", lambda: says("step 50"))
    (second,) = (
        pod["metadata"]["name"] for pod in pods(cluster, "torch")
        if pod["metadata"]["labels"]["fairlead.dev/index"] == "1"
    )  # fmt: skip
    cluster.kubectl("exec", second, "--", "sh", "-c", _KILLS_ONE)
    job = client.until_state("torch", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", json.dumps(job["status"])
    assert job["status"]["attempt"] == 2
    assert len({pod["spec"]["nodeName"] for pod in pods(cluster, "torch")}) == 2
    assert says("rank 0 of 4"), "two members, two processes on each"
    assert says("resumed from the checkpoint of step")
    assert says("on unseen samples after 200 steps")


#: End one of the processes that torchrun has started.
_KILLS_ONE = """for each in /proc/[0-9]*; do
  if tr '\\0' ' ' < "$each/cmdline" | grep -q '^[^ ]* -u examples/torch/train.py'; then
    kill -9 "${each#/proc/}"; exit 0
  fi
done
exit 1"""
