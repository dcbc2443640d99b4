"""Large programs for Slurm as they are published, unchanged, on a cluster of real processes.

`make test-slurm` installs and runs them. Open OnDemand is a package of RubyGems alone, so
`test_slurm_calls` repeats its calls instead.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import Tools
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.programs, pytest.mark.timeout(900)]

INSTALLED = Path(__file__).parents[2] / ".cache/programs"
NEXTFLOW = INSTALLED / "nextflow"
LIGHTNING = INSTALLED / "lightning/bin/python"
#: What starts Java for Nextflow, as its launcher does.
OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED"
          for name in ("lang", "io", "nio", "util", "net")]  # fmt: skip


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    if not (INSTALLED / ".ready").exists():
        pytest.skip("`make test-slurm` installs the programs")
    shell = Shell(tmp_path)
    shell.up("--nodes", "1", "--listen", "127.0.0.1:0")
    try:
        tools = Tools(shell)
        tools.environment["PATH"] = f"{tools.bin}:{INSTALLED}/bin:{os.environ['PATH']}"
        yield tools
    finally:
        shell.down()
        kill(processes_of(shell.data))


def run(tools: Tools, *words: str, **environment: str) -> str:
    """Run a program to its end and return what it wrote; one that fails shows all of it."""
    done = subprocess.run(
        words, cwd=tools.root, env={**tools.environment, **environment}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


WORKFLOW = """
process alone {
  input: val n
  output: stdout
  script:
  "echo alone $n"
}
process listed {
  array 2
  errorStrategy 'retry'
  input: val n
  output: stdout
  script:
  "[ $n != 1 ] || [ $task.attempt != 1 ] || exit 7; echo listed $n, attempt $task.attempt"
}
process elsewhere {
  clusterOptions '--partition=local --qos=normal'
  cpus 2
  memory '64 MB'
  time '72h'
  input: val all
  output: stdout
  script:
  "echo ${all*.trim().sort()} with \\$SLURM_CPUS_PER_TASK CPUs"
}
workflow {
  alone(Channel.of(1..47))
  listed(Channel.of(0..1))
  alone.out.mix(listed.out) | collect | elsewhere | view
}
"""
#: 10 seconds, unless said otherwise.
POLLING = """
process.executor = 'slurm'
process.queue = 'all'
executor { pollInterval = '1 sec'; queueStatInterval = '1 sec'; exitReadTimeout = '60 sec' }
"""


def test_nextflow_runs_50_tasks_an_array_and_a_retry_and_finds_a_job_of_another_partition(
    tools: Tools,
) -> None:
    (tools.root / "main.nf").write_text(WORKFLOW)
    (tools.root / "nextflow.config").write_text(POLLING)
    said = run(
        tools, "java", "-XX:TieredStopAtLevel=1", *OPENED, "-cp", f"{NEXTFLOW}/*",
        "nextflow.cli.Launcher", "run", "main.nf", "-ansi-log", "false",
        NXF_OFFLINE="true", NXF_HOME=str(tools.root / "nxf"),
    )  # fmt: skip
    alone = ", ".join(sorted(f"alone {i}" for i in range(1, 48)))
    assert f"[{alone}, listed 0, attempt 1, listed 1, attempt 2] with 2 CPUs" in said, said
    ended = tools.run("sacct", "-X", "-n", "-P", "-o", "State,Timelimit").out.splitlines()
    assert sorted(ended) == ["COMPLETED|3-00:00:00", *["COMPLETED|UNLIMITED"] * 49,
                             "FAILED|UNLIMITED"]  # fmt: skip


SNAKEFILE = """
rule all:
    input: "one", "large"
rule one:
    output: "one"
    resources: mem_mb=1000, runtime=10
    shell: "echo $SLURM_JOB_ID > {output}"
rule large:
    output: "large"
    resources: mem_mb=lambda wildcards, attempt: (32, 1000)[attempt - 1], runtime=10
    retries: 1
    shell: "echo $SLURM_JOB_ID > {output}"
"""


def test_snakemake_runs_its_rules_and_gives_what_was_killed_for_memory_more_of_it(
    tools: Tools,
) -> None:
    (tools.root / "Snakefile").write_text(SNAKEFILE)
    said = run(
        tools, "snakemake", "--executor", "slurm", "--jobs", "3", "--seconds-between-status-checks",
        "1", "--slurm-init-seconds-before-status-checks", "1",
    )  # fmt: skip
    assert "SLURM status is: 'OUT_OF_MEMORY'" in said
    ended = tools.run("sacct", "-X", "-n", "-P", "-o", "JobID,State").out.split()
    states = dict(line.split("|") for line in ended)
    assert sorted(states.values()) == ["COMPLETED", "COMPLETED", "OUT_OF_MEMORY"]
    for name in ("one", "large"):
        assert states[(tools.root / name).read_text().strip()] == "COMPLETED"


HUB = """
import os, sys
import batchspawner
from traitlets import Unicode

class Spawner(batchspawner.SlurmSpawner):
    req_homedir = Unicode(os.getcwd())

main, api, proxy = map(int, os.environ["PORTS"].split())
c.JupyterHub.bind_url = f"http://127.0.0.1:{main}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{proxy}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.services = [{"name": "test", "api_token": "of-the-test"}]
c.JupyterHub.load_roles = [{
    "name": "test", "services": ["test"],
    "scopes": ["admin:users", "admin:servers", "access:servers", "list:users"],
}]
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.spawner_class = Spawner
c.Spawner.exec_prefix = ""
c.Spawner.start_timeout = c.Spawner.http_timeout = 600
c.Spawner.env_keep = ["PATH", "FAIRLEAD_KUBECONFIG"]
c.Spawner.args = ["--allow-root"]
c.Spawner.req_partition, c.Spawner.req_runtime = "local", "0:20:00"
c.Spawner.req_memory, c.Spawner.req_nprocs = "500M", "1"
"""
USER = pwd.getpwuid(os.getuid()).pw_name


def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    """Ask the hub or a server behind it; code 0 where nothing answers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", method=method,
        headers={"Authorization": "token of-the-test"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, None


def test_jupyterhub_spawns_a_server_in_a_job_reaches_it_there_and_ends_it(tools: Tools) -> None:
    (tools.root / "jupyterhub_config.py").write_text(HUB)
    ports = main, api, _ = free_port(), free_port(), free_port()
    environment = {
        **tools.environment, "PORTS": " ".join(map(str, ports)),
        "PATH": f"{INSTALLED}/node_modules/.bin:{tools.environment['PATH']}",
    }  # fmt: skip
    user = f"/hub/api/users/{USER}"
    with (
        (tools.root / "hub.log").open("w") as log,
        subprocess.Popen(
            ["jupyterhub"], cwd=tools.root, env=environment, stdout=log, stderr=log
        ) as hub,  # fmt: skip
    ):
        try:
            eventually(lambda: ask(api, "/hub/api/users")[0], 200)
            eventually(lambda: ask(main, "/hub/api/")[0], 200)
            assert ask(api, user, "POST")[0] == 201
            assert ask(api, f"{user}/server", "POST")[0] in (201, 202)
            eventually(lambda: ask(api, user)[1]["server"], f"/user/{USER}/")
            code, said = ask(main, f"/user/{USER}/api/status")
            assert (code, said["kernels"]) == (200, 0), (tools.root / "hub.log").read_text()
            assert tools.queue(form="%j %T %P") == ["spawner-jupyterhub RUNNING local"]
            assert ask(api, f"{user}/server", "DELETE")[0] in (202, 204)
            eventually(tools.queue, [])
        finally:
            hub.terminate()
    ended = tools.run("sacct", "-X", "-n", "-P", "-o", "JobName,State").out
    assert ended == "spawner-jupyterhub|CANCELLED\n"


FIT = """
import pathlib, time
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def _register_sharded_tensor_state_dict_hooks_if_available(self):
        "Debian 12 has torch 1.13, which cannot import what this needs on Python 3.11."
    def training_step(self, batch, _):
        time.sleep(0.05)
        return (self.layer(batch) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def on_train_batch_end(self, *_):
        if self.trainer.global_step == 3:
            pathlib.Path(f"under-way-{self.global_rank}").touch()
        self.trainer.should_stop = pathlib.Path("again").exists()
    def on_train_start(self):
        again = self.trainer.global_step > 0
        print(f"rank {self.global_rank} of {self.trainer.world_size}, again: {again}\\n", end="")
        if again:
            pathlib.Path("again").touch()

trainer = pl.Trainer(
    accelerator="cpu", devices=2, num_nodes=1, strategy="ddp", max_epochs=-1, logger=False,
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
)
trainer.fit(Line(), DataLoader(torch.ones(1000, 1), batch_size=2))
"""


def test_lightning_trains_in_the_tasks_of_srun_saves_at_the_signal_and_requeues_itself(
    tools: Tools,
) -> None:
    if not LIGHTNING.exists():
        pytest.skip("/usr/bin/python3 has no torch (on Debian: python3-torch)")
    (tools.root / "fit.py").write_text(FIT)
    number = int(tools.run(
        "sbatch", "--parsable", "-J", "fit", "--ntasks-per-node=2", "-t", "10", "-o", "fit.out",
        "--signal=SIGUSR1@30", "--open-mode=append", stdin="#!/bin/bash\n"
        "#FAIRLEAD --cpus 200m\n"
        f"srun {LIGHTNING} fit.py\n",
    ).out)  # fmt: skip
    eventually((tools.root / "under-way-1").exists, expected=True, seconds=400)
    tools.run("scontrol", "requeue", str(number))
    eventually(lambda: tools.queue("-t", "all", "-j", str(number)), [f"{number} CD"], seconds=400)
    said = (tools.root / "fit.out").read_text()
    for rank in (0, 1):
        assert f"rank {rank} of 2, again: False" in said, said
        assert f"rank {rank} of 2, again: True" in said, said
