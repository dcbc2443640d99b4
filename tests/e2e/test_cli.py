"""A researcher's day at the terminal, against one real cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

from fairlead.api import names
from fairlead.api.resources import JOBS, PODS
from fairlead.cli.cluster.answers import ask_fit, ask_why
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.transport import Api
from fairlead.runtime.client import Propagation, Request, RequestVerb

pytestmark = pytest.mark.e2e

GANG = """#!/bin/sh
#FAIRLEAD --nodes 2 --cpus 100m
for step in 1 2 3 4 5; do
  echo "{\\"step\\": $step, \\"checkpoint\\": true}" >> "$FAIRLEAD_PROGRESS_FILE"
  echo "rank $RANK of $WORLD_SIZE step $step: $1"
done
"""
#: Saves a checkpoint every fifth step, and one more when it is asked to end.
SAVES = """#!/bin/sh
#FAIRLEAD --cpus 100m
step=${FAIRLEAD_RESUME_STEP:-0}
save() { echo "{\\"step\\": $step, \\"checkpoint\\": true}" >> "$FAIRLEAD_PROGRESS_FILE"; }
trap 'step=$((step / 5 * 5 + 3)); save; exit 143' TERM
echo "go on from step $step"
[ $step = 0 ] || exit 0
while :; do
  step=$((step + 1))
  [ $((step % 5)) != 0 ] || save
  sleep 0.05
done
"""
SLEEP = "#!/bin/sh\n#FAIRLEAD --cpus 100m\necho started\nexec sleep 600\n"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("cli"))
    (shell.root / "gang.sh").write_text(GANG)
    (shell.root / "sleep.sh").write_text(SLEEP)
    shell.up("--nodes", "20", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()


def test_a_checkpoint_saved_at_the_end_of_an_attempt_is_the_one_why_names(
    shell: Shell,
) -> None:
    (shell.root / "saves.sh").write_text(SAVES)
    shell.run("submit", "saves.sh", "--name", "saves")
    shell.run("wait", "saves", "--for", "started", "--timeout", "100s")
    eventually(lambda: "from step" in shell.run("logs", "saves").out, True)
    eventually(lambda: "checkpoint" in shell.run("why", "saves").out, True)
    shell.run("hold", "saves")
    shell.run("release", "saves")
    assert shell.run("wait", "saves", "--timeout", "100s").out == "saves Succeeded\n"
    printed = re.search(r"go on from step (\d+)", shell.run("logs", "saves").out)
    assert printed is not None
    assert int(printed[1]) % 5 == 3, "it goes on from what was saved at the end"
    assert f"from step {printed[1]}," in shell.run("why", "saves").out


def test_a_job_goes_to_the_cluster_where_it_starts_soonest(shell: Shell) -> None:
    own = json.loads((shell.data / "kubeconfig").read_text())
    [cluster], [context] = own["clusters"], own["contexts"]
    gone = {"name": "gone", "cluster": {**cluster["cluster"], "server": "https://127.0.0.1:1"}}
    elsewhere = {"name": "gone", "context": {**context["context"], "cluster": "gone"}}
    config = shell.root / "clusters"
    contexts = {"current-context": "gone", "contexts": [elsewhere, context]}
    config.write_text(json.dumps({**own, **contexts, "clusters": [cluster, gone]}))
    flags = ("--cluster", "auto", "--kubeconfig", str(config))
    submitted = shell.run("submit", "gang.sh", "--name", "soonest", *flags)
    assert submitted.out == "soonest\n"
    assert "gone: no answer from https://127.0.0.1:1" in submitted.err
    assert f"{context['name']}: fits now, on 1 node (chosen)" in submitted.err
    assert (
        f"fairlead why soonest --kubeconfig {config} --context {context['name']}" in submitted.err
    )
    assert shell.run("wait", "soonest", "--timeout", "100s").out == "soonest Succeeded\n"
    refused = shell.run("submit", "gang.sh", "--gpus", "99999", *flags, code=5).err
    assert "error[E606]: none of 2 clusters takes it" in refused


def test_a_gang_of_a_script_runs_and_leaves_logs_and_history(shell: Shell) -> None:
    submitted = shell.run("submit", "gang.sh", "--", "two words $$ $(id)")
    assert submitted.out == "gang-1\n"
    assert "2 members x 0.1 CPUs" in submitted.err
    assert "fits now" in submitted.err
    assert shell.run("wait", "gang-1", "--timeout", "100s").out == "gang-1 Succeeded\n"
    lines = shell.run("logs", "gang-1").out.splitlines()
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"[worker-{rank}]")]
        expected = f"[worker-{rank}] rank {rank} of 2 step {{}}: two words $$ $(id)"
        assert mine == [expected.format(step) for step in range(1, 6)]
    last = shell.run("logs", "gang-1", "--task", "1", "--tail", "1").out
    assert last.endswith("rank 1 of 2 step 5: two words $$ $(id)\n")
    history = shell.run("history", "--no-headers").out
    assert re.search(r"^gang-1 +Succeeded +2 +1 ", history, re.MULTILINE)
    assert "has ended: Succeeded" in shell.run("why", "gang-1").out


def test_a_queued_job_runs_the_script_as_it_was_when_it_was_submitted(shell: Shell) -> None:
    script = shell.root / "edited.sh"
    script.write_text("echo before\n")
    name = shell.run("submit", "edited.sh", "--hold").out.strip()
    script.write_text("echo after\n")
    shell.run("release", name)
    shell.run("wait", name, "--timeout", "100s")
    assert shell.run("logs", name).out.endswith("before\n")


def test_a_script_comes_from_standard_input_as_it_does_with_sbatch(shell: Shell) -> None:
    script = "#FAIRLEAD --cpus 10m\necho of $1\n"
    name = shell.run("submit", "-", "--", "stdin", stdin=script).out.strip()
    assert name == "stdin-1"
    shell.run("wait", name, "--timeout", "100s")
    assert shell.run("logs", name).out.endswith("of stdin\n")
    assert shell.job(name)["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"][
        "requests"
    ] == {"cpu": "10m"}
    assert "script '-' is empty" in shell.run("submit", "-", stdin="\n", code=2).err


def test_run_follows_a_command_and_tells_by_its_exit_code_how_it_went(shell: Shell) -> None:
    good = shell.run("run", "--name", "good", "--", "sh", "-c", "echo out; echo err >&2; pwd")
    assert set(good.out.splitlines()) == {"out", "err", str(shell.root)}
    bad = shell.run("run", "-q", "--name", "bad", "--", "sh", "-c", "echo once; exit 3", code=3)
    assert bad.out == "once\n"
    assert "exited with code 3" in bad.err
    assert shell.job("bad")["status"]["attempt"] == 1
    ended = shell.run("wait", "bad", "good", code=3)
    assert [line.split(":")[0] for line in ended.out.splitlines()] == [
        "bad Failed", "good Succeeded",
    ]  # fmt: skip
    absent = shell.run("run", "-q", "--", "nosuch-program", code=2)
    assert "there is no program 'nosuch-program'" in absent.err


def test_why_shows_the_last_lines_of_the_member_whose_program_failed_first(shell: Shell) -> None:
    program = """import os, time
if os.environ["RANK"] == "1":
    print("reads shard 7", flush=True)
    raise KeyError("weights")
time.sleep(60)"""
    (shell.root / "fails.py").write_text(f"#!{sys.executable}\n{program}\n")
    shell.run("submit", "fails.py", "--name", "fails", "--nodes", "3", "--cpus", "100m")
    shell.run("wait", "fails", code=1)
    told = shell.run("why", "fails").out
    assert "  last lines of worker-1    (all: fairlead logs fails --task worker-1)\n" in told
    assert "\n    reads shard 7\n    Traceback (most recent call last):\n" in told
    assert told.endswith("\n    KeyError: 'weights'\n")
    last = json.loads(shell.run("why", "fails", "-o", "json").out)["lastLines"]
    assert (last["member"], last["attempt"], last["lines"][-1]) == (
        "worker-1", 1, "KeyError: 'weights'",
    )  # fmt: skip
    shell.run("run", "-q", "--name", "silent", "--", "sh", "-c", "exit 3", code=3)
    assert "last lines" not in shell.run("why", "silent").out


def test_run_gives_its_standard_input_to_the_members(shell: Shell) -> None:
    done = shell.run(
        "run", "--nodes", "2", "--cpus", "10m", "--", "sed", "s/^/got /", stdin="a\nb\n"
    )
    assert sorted(done.out.splitlines()) == [
        f"[worker-{rank}] got {letter}" for rank in (0, 1) for letter in "ab"
    ]
    long = shell.run("run", "--", "cat", stdin="x" * (513 << 10), code=2)
    assert "standard input is larger than 512 KiB" in long.err


def test_a_reader_that_has_seen_enough_does_not_fail_the_job(shell: Shell) -> None:
    script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done; exit 4"
    process = subprocess.Popen(
        shell.command("run", "--name", "headed", "--", "sh", "-c", script), cwd=shell.root,
        env=shell.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "line 1\n"
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(PATIENCE_SECONDS) == 4, "the exit code is the job's"
    assert "headed Failed" in said
    assert shell.run("logs", "headed").out.endswith("line 6\n")


def test_ctrl_c_detaches_from_a_job_and_says_how_to_return(shell: Shell) -> None:
    process = shell.start("run", "--name", "detached", "--", "sleep", "600")
    eventually(lambda: shell.state("detached"), "Running")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, (out, err)
    assert "Job detached goes on.    fairlead logs -f detached" in err
    assert "Traceback" not in err
    assert shell.state("detached") == "Running"
    shell.run("cancel", "detached")
    shell.run("wait", "detached", code=1)


def test_hold_release_and_cancel(shell: Shell) -> None:
    name = shell.run("submit", "sleep.sh", "--name", "patient").out.strip()
    shell.run("wait", name, "--for", "started", "--timeout", "100s")
    assert shell.run("hold", name).out == "patient held\n"
    eventually(lambda: shell.state(name), "Held")
    assert "fairlead release patient" in shell.run("why", name).out
    shell.run("release", name)
    eventually(lambda: shell.state(name), "Running")
    assert shell.run("wait", name, "--timeout", "1s", code=124).out == ""
    shell.run("cancel", name)
    assert shell.run("wait", name, "--for", "finished").out == "patient Cancelled\n"
    refused = shell.run("hold", name, code=4)
    assert refused.err.startswith("error[E302]: job 'patient' has ended (Cancelled)")


def test_of_two_jobs_that_want_all_nodes_one_runs_and_the_other_says_why_not(shell: Shell) -> None:
    whole = ("--simulate", "10m", "--nodes", "20", "--gpus", "8", "--time", "1h")
    first = shell.run("submit", "sleep.sh", "--name", "whole-1", *whole).out.strip()
    shell.run("wait", first, "--for", "started", "--timeout", "100s")
    second = shell.run("submit", "sleep.sh", "--name", "whole-2", *whole)
    assert "waits: needs 160 GPUs, 0 of 160 are free: 160 short" in second.err
    eventually(lambda: "InsufficientCapacity" in shell.run("ps").out, expected=True)
    why = shell.run("why", "whole-2").out
    assert why.startswith("Job whole-2 waits: InsufficientCapacity")
    assert re.search(r"whole-1  160 GPUs on 20 nodes, at most (1h|59m) more", why)
    facts = json.loads(shell.run("why", "whole-2", "-o", "json").out)["explanation"]
    assert facts["arithmetic"][0]["short"] == 160
    assert facts["holders"][0]["key"] == ["default", "whole-1"]
    nodes = shell.run("nodes").out
    assert re.search(r"^virtual +ready +20 +160/160 ", nodes, re.MULTILINE)
    shell.run("cancel", "whole-1")
    shell.run("wait", "whole-2", "--for", "started", "--timeout", "100s")
    shell.run("cancel", "whole-2")


def test_pods_that_a_deleted_job_left_hold_their_nodes_in_every_answer(shell: Shell) -> None:
    sizes = ("--simulate", "10m", "--gpus", "8", "--nodes")
    shell.run("submit", "sleep.sh", "--name", "left", *sizes, "10")
    shell.run("wait", "left", "--for", "started", "--timeout", "100s")
    api = Api(find_connection(Choice(str(shell.data / "kubeconfig")), {}))
    orphaning: Request[None] = Request(
        RequestVerb.DELETE, JOBS, "default", "left", propagation=Propagation.ORPHAN
    )
    api.call(orphaning)
    eventually(lambda: "left" in shell.run("ps").out, expected=False)
    said = "needs 160 GPUs, 80 of 160 are free: 80 short"
    checked = shell.run("submit", "sleep.sh", "--name", "all", "--dry-run", *sizes, "20").err
    assert said in checked
    shell.run("submit", "sleep.sh", "--name", "all", *sizes, "20")
    eventually(lambda: said in shell.run("ps", "-o", "wide").out, expected=True)
    job = api.get(JOBS, "all", namespace="default")
    assert ask_why(api, job) is not None, "the process that decides answers"
    assert ask_fit(api, job) is not None
    why = shell.run("why", "all").out
    assert why.startswith("Job all waits: InsufficientCapacity")
    assert said in why
    assert "80 of 160 are free, 80 short" in why
    shell.run("cancel", "all")
    for pod in api.list(PODS, namespace="default", label_selector=f"{names.JOB_NAME}=left"):
        api.delete(PODS, pod.metadata.name, namespace="default")


def test_a_job_that_no_node_could_hold_is_refused_and_not_stored(shell: Shell) -> None:
    result = shell.run("submit", "sleep.sh", "--name", "huge", "--simulate", "1s", "--gpus", "16",
                       code=5)  # fmt: skip
    assert "error[E110]: no node has 16 GPUs (largest: 8)" in result.err
    assert "help: --nodes 2 --gpus 8" in result.err
    assert shell.job("huge") == {}


def test_a_dry_run_stores_nothing_and_its_manifest_can_be_submitted(shell: Shell) -> None:
    before = shell.run("ps", "-a", "-o", "name").out
    dry = shell.run("submit", "gang.sh", "--name", "again", "--dry-run", "-o", "yaml", "--", "x")
    assert shell.run("ps", "-a", "-o", "name").out == before
    assert "nothing was stored" in dry.err
    stored = shell.run("submit", "-f", "-", stdin=dry.out)
    assert stored.out == "again\n", "the job's id, for what reads it"
    shell.run("wait", "again", "--timeout", "100s")
    assert "step 5: x" in shell.run("logs", "again").out


def test_of_a_manifest_with_one_mistake_nothing_is_stored(shell: Shell) -> None:
    good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\n---\n"
    bad = ("apiVersion: fairlead.dev/v1alpha1\nkind: Job\nmetadata: {name: a}\n"
           "spec:\n  roles:\n  - {name: w, count: 0, tempalte: {}}\n")  # fmt: skip
    result = shell.run("submit", "-f", "-", stdin=good + bad, code=2)
    assert result.err.count("error[") == 3  # count, tempalte, and the template that is missing
    assert "--> stdin:10:22   `spec.roles[0].count`" in result.err
    missing = shell.run("submit", "-f", "-", stdin=good.replace("kept", "kept\n  bad: ["), code=2)
    assert "E101" in missing.err
    # what only the server can refuse comes after the dry run of all documents
    gone = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gone, namespace: nowhere}\n"
    result = shell.run("submit", "-f", "-", code=3, stdin=good + gone)
    assert "nowhere" in result.err
    shell.run("submit", "-f", "-", stdin=good)
    assert "E120" in shell.run("submit", "-f", "-", stdin=good, code=4).err


def test_an_after_that_cannot_come_true_is_told_at_submit(shell: Shell) -> None:
    result = shell.run("submit", "sleep.sh", "--after", "ok:gang-11", code=3)
    assert "error[E130]: job 'gang-11' does not exist" in result.err
    assert "did you mean gang-1?" in result.err
    shell.run("wait", "gang-1")
    name = shell.run("submit", "gang.sh", "--name", "later", "--after", "ok:gang-1").out.strip()
    shell.run("wait", name, "--timeout", "100s")


def test_names_in_use_unknown_jobs_and_namespaces_are_told_apart(shell: Shell) -> None:
    shell.run("wait", "gang-1")
    assert "E120" in shell.run("submit", "gang.sh", "--name", "gang-1", code=4).err
    assert "did you mean gang-1?" in shell.run("logs", "gagn-1", code=3).err
    assert "E303" in shell.run("submit", "gang.sh", "-n", "nowhere", code=3).err
    both = shell.run("hold", "nobody", "gang-1", code=3).err
    assert both.count("error[") == 2
    ended = shell.run("cancel", "gang-1")
    assert (ended.out, ended.err) == ("", "gang-1 has ended already (Succeeded)\n")


def test_every_format_is_complete_and_names_feed_other_commands(shell: Shell) -> None:
    shell.run("wait", "gang-1")
    items = json.loads(shell.run("ps", "-a", "-o", "json").out)["items"]
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= set(items[0])
    assert "kind: Job" in shell.run("ps", "-a", "-o", "yaml").out
    assert "gang-1" in shell.run("ps", "-a", "-o", "name").out.splitlines()
    assert shell.run("nodes", "-o", "name").out.count("\n") == 21
    assert "NAMESPACE" in shell.run("ps", "-A").out
    record = json.loads(shell.run("history", "gang-1", "-o", "json").out)
    assert record["metadata"]["name"] == "gang-1"
    status = json.loads(shell.run("status", "--data", str(shell.data), "-o", "json").out)
    assert status["nodes"] == {"local": 1, "virtual": 20, "other": 0}
    assert all(service["state"] == "running" for service in status["services"])


def test_completion_knows_commands_and_jobs(shell: Shell) -> None:
    shell.run("wait", "gang-1")

    def complete(words: str, number: int) -> str:
        environment = {"_FAIRLEAD_COMPLETE": "bash_complete", "COMP_WORDS": words,
                       "COMP_CWORD": str(number)}  # fmt: skip
        script = "import sys; sys.argv[0] = 'fairlead'; from fairlead.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", script], check=False, timeout=PATIENCE_SECONDS, text=True,
            env={**shell.environment, **environment}, capture_output=True,
        ).stdout  # fmt: skip

    assert "plain,cancel" in complete("fairlead can", 1)
    assert "plain,gang-1" in complete("fairlead logs gan", 2)


def test_a_broken_pipe_is_quiet(shell: Shell) -> None:
    shell.run("wait", "gang-1")
    command = " ".join(shell.command("ps", "-a", "-o", "json"))
    done = subprocess.run(["/bin/sh", "-c", f"{command} | head -c 1"], capture_output=True,
                          text=True, env=shell.environment, check=False,
                          timeout=PATIENCE_SECONDS)  # fmt: skip
    assert (done.stdout, done.stderr) == ("{", "")


def test_metrics_are_served_behind_the_token(shell: Shell) -> None:
    import ssl
    import urllib.error
    import urllib.request

    authority = find_connection(Choice(str(shell.data / "kubeconfig")), {}).certificate_authority
    context = ssl.create_default_context(cadata=authority.decode())
    running = json.loads((shell.data / "run.json").read_text())
    request = urllib.request.Request(f"{running['server']}/metrics")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=context)
    token = (shell.data / "token").read_text()
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=context) as answer:
        text = answer.read().decode()
    assert "fairlead_jobs{" in text
    assert "fairlead_decide_duration_seconds_bucket" in text


def test_secrets_are_private(shell: Shell) -> None:
    for name in ("kubeconfig", "token", "run.json"):
        assert (shell.data / name).stat().st_mode & 0o777 == 0o600
    assert shell.data.stat().st_mode & 0o777 == 0o700
    assert Path(shell.data, "log", "fairlead.log").read_text().count("Traceback") == 0
