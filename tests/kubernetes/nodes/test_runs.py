"""Facts of runs with real kubelets: what they keep of a container's termination message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import IMAGE, submit
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

pytestmark = pytest.mark.kubernetes

#: Records far more than a kubelet keeps, beside progress that has to stay readable.
TRAIN = """python - <<'END'
import os, fairlead.run
from fairlead.member.progress import report
report(5, checkpoint=True)
fairlead.run.param("batch", 32)
for step in range(20_000):
    fairlead.run.metric("loss", 1 / (1 + step), step)
    fairlead.run._recorder.due = 0 if step % 100 == 0 else fairlead.run._recorder.due
END"""
FACTS = """for i in $(seq 1000); do
  echo "{\\"metric\\": \\"loss\\", \\"value\\": $i}" >> "$FAIRLEAD_RUN_FILE"
done
exit 3"""


def test_what_a_program_records_reaches_the_job_and_outlives_it(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    options = ("--name", "train", "--cpus", "100m", "--param", "lr=0.1", "--tag", "k8s")
    submit(client, tmp_path, TRAIN, *options)
    job = client.until_state("train", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    assert job["status"]["progress"]["checkpointStep"] == 5
    cluster.kubectl("delete", "jobs.fairlead.dev", "train", "--wait=true", "--timeout=60s")
    [line] = json.loads(client.run("runs", "--tag", "k8s", "-o", "json"))
    assert line["run"]["params"] == {"lr": "0.1", "batch": "32"}
    shown = json.loads(client.run("runs", "show", "train", "-o", "json"))
    loss = shown["metrics"]["loss"]
    assert (loss["count"], loss["step"], loss["min"], loss["max"]) == (
        20_000,
        19_999,
        1 / 20_000,
        1,
    )
    assert len(loss["values"]) > 4
    assert "isPartial" not in shown


def test_of_single_facts_a_kubelet_keeps_the_last_and_that_is_said(
    client: Client, tmp_path: Path
) -> None:
    submit(client, tmp_path, FACTS, "--name", "facts", "--cpus", "100m", "--image", IMAGE)
    client.until_state("facts", "Failed", "Succeeded")
    shown = json.loads(client.run("runs", "show", "facts", "-o", "json"))
    loss = shown["metrics"]["loss"]
    assert (loss["last"], loss["max"]) == (1_000, 1_000)
    assert 20 < loss["count"] < 200
    assert shown["isPartial"]
