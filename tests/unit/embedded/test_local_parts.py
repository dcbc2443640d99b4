"""The local node's pure parts: expansion, paths, fields, machine limits, addresses, progress."""

from __future__ import annotations

import asyncio
import random
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod, ResourceRequirements, Secret
from fairlead.api.resources import CONFIG_MAPS, SECRETS
from fairlead.embedded.local.config import ConfigData, ConfigMirrors
from fairlead.embedded.local.containers import (
    ConfigMissing,
    ContainerMount,
    Unsupported,
    expand,
    launch_of,
    rewrite,
)
from fairlead.embedded.local.host import Addresses
from fairlead.embedded.local.machine import read_machine
from fairlead.embedded.local.memory import PAGE_BYTES, MemoryGroups, above_limit, kill_count
from fairlead.embedded.local.poddir import PodDir, safe
from fairlead.embedded.local.processes.endings import recorded_end
from fairlead.embedded.local.processes.process import ExitFile, Run
from fairlead.embedded.local.progress import MemberReports, ProgressFile
from fairlead.embedded.virtual.stages.status import pod_requests
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.logs import SILENT
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y22"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NONE) $ $A", "$(NONE) $ $A"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
    ],
)
def test_variables_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "22"}) == expanded


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("/etc/fairlead", "/pod/peers"),
        ("/etc/fairlead/", "/pod/peers/"),
        ("/etc/fairlead/hostfile", "/pod/peers/hostfile"),
        ("/etc/fairlead/deep/x", "/pod/deep/x"),
        ("/etc/fairleader", "/etc/fairleader"),
        ("see /etc/fairlead", "see /etc/fairlead"),
        ("", ""),
    ],
)
def test_paths_below_a_mount_are_rewritten_the_longest_mount_wins(text: str, real: str) -> None:
    mounts = [
        ContainerMount("/etc/fairlead/", "/pod/peers"),
        ContainerMount("/etc/fairlead/deep", "/pod/deep"),
    ]
    assert rewrite(text, mounts) == real


def pod_of(**container: Any) -> Pod:
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"role": "w"}},
        "spec": {"containers": [{"name": "main", "command": ["run"], **container}]},
    }
    return msgspec.convert(body, Pod)


class Config:
    """ConfigMap `m` and Secret `s`, or neither."""

    def __init__(self, data: dict[str, str] | None) -> None:
        self.data = data

    def config_map(self, name: str) -> dict[str, str] | None:
        return self.data if name == "m" else None

    def secret(self, name: str) -> dict[str, str] | None:
        return (
            None if self.data is None or name != "s" else {k: f"*{v}" for k, v in self.data.items()}
        )


def env_of(
    source: dict[str, Any] | None, config: dict[str, str] | None = None, **container: Any
) -> dict[str, str]:
    env = [] if source is None else [{"name": "X", "valueFrom": source}]
    pod = pod_of(env=env, **container)
    launch = launch_of(
        pod,
        pod.spec.containers[0],
        Config(config),
        pod_ip="127.1.1.1",
        mounts=(),
        base={"PATH": "/bin"},
        cwd="/",
    )
    return launch.env


def test_a_container_without_a_limit_of_memory_has_that_of_its_pod() -> None:
    for own, expected in ({}, GIB), ({"limits": {"memory": "1Mi"}}, 1 << 20):
        pod = pod_of(resources=own)
        whole = ResourceRequirements(limits={"memory": "1Gi", "cpu": "1"})
        pod = replace(pod, spec=replace(pod.spec, resources=whole))
        launch = launch_of(
            pod, pod.spec.containers[0], Config(None), pod_ip="", mounts=(), base={}, cwd="/"
        )
        assert launch.memory_bytes == expected


def test_values_from_elsewhere_wait_are_left_out_or_refused() -> None:
    key = {"configMapKeyRef": {"name": "m", "key": "k"}}
    assert env_of(key, {"k": "v"}) == {"PATH": "/bin", "X": "v"}
    with pytest.raises(ConfigMissing, match='configmap "m" with key "k"'):
        env_of(key, {})
    with pytest.raises(ConfigMissing, match='configmap "m" not found'):
        env_of(key)
    optional = {"configMapKeyRef": {"name": "m", "key": "k", "optional": True}}
    assert env_of(optional) == {"PATH": "/bin"}
    assert env_of({"fieldRef": {"fieldPath": "metadata.labels['role']"}})["X"] == "w"
    assert env_of({"fieldRef": {"fieldPath": "metadata.labels['none']"}})["X"] == ""
    with pytest.raises(Unsupported, match="accepted: metadata"):
        env_of({"fieldRef": {"fieldPath": "spec.nothing"}})
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert env_of(secret, {"k": "v"})["X"] == "*v"
    with pytest.raises(ConfigMissing, match='secret "s" with key "k" not found') as caught:
        env_of(secret, {"other": "v"})
    assert caught.value.reason == "CreateContainerConfigError"
    assert env_of({"secretKeyRef": {"name": "s", "key": "k", "optional": True}}) == {"PATH": "/bin"}


def test_env_from_gives_all_keys_the_later_source_wins_and_env_over_all() -> None:
    both = [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}}]
    assert env_of(None, {"k": "v"}, envFrom=both) == {"PATH": "/bin", "k": "v", "S_k": "*v"}
    same = [{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]
    assert env_of(None, {"k": "v"}, envFrom=same)["k"] == "*v"
    declared = env_of({"configMapKeyRef": {"name": "m", "key": "X"}}, {"X": "v"}, envFrom=same)
    assert declared["X"] == "v"
    for what, ref in (("configmap", "configMapRef"), ("secret", "secretRef")):
        with pytest.raises(ConfigMissing, match=f'{what} "none" not found') as caught:
            env_of(None, {"k": "v"}, envFrom=[{ref: {"name": "none"}}])
        assert caught.value.reason == "CreateContainerConfigError"
        optional = [{ref: {"name": "none", "optional": True}}]
        assert env_of(None, {"k": "v"}, envFrom=optional) == {"PATH": "/bin"}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:  8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "milli", "memory"),
    [
        ({}, None, 8 * GIB),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/b/memory.max": str(2 * GIB),
            },
            500,
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "25000",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
            },
            250,
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "-1 0",
                "sys/fs/cgroup/memory.max": "max",
            },
            None,
            8 * GIB,
        ),
    ],
)
def test_limits_of_control_groups_count_when_they_are_tighter(
    tmp_path: Path, files: dict[str, str], milli: int | None, memory: int
) -> None:
    machine = read_machine(tuple, tree(tmp_path, files))
    assert machine.memory_bytes == memory
    whole = read_machine(tuple, tree(tmp_path / "plain", {})).cpu_milli
    assert machine.cpu_milli == (whole if milli is None else milli)


def test_addresses_are_stable_distinct_and_free_again_after_use() -> None:
    pool = Addresses("data")
    found = {f"u{i}": pool.take(f"u{i}") for i in range(5000)}
    assert len(set(found.values())) == 5000
    assert all(a.startswith("127.") and not a.startswith("127.0.") for a in found.values())
    assert pool.take("u7") == found["u7"]
    later = Addresses("data")
    later.adopt(found["u7"], "another")
    assert later.take("u7") != found["u7"]
    later.give_back(found["u7"], "another")
    assert Addresses("elsewhere").take("u7") != found["u7"]


def test_progress_follows_a_file_that_grows_breaks_off_and_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    file = ProgressFile(path)
    assert not file.look(0.0)
    path.write_text('{"step": 1, "checkpoint": true}\n{"step": 2}\nnonsense\n{"st')
    assert file.look(5.0)
    assert file.latest is not None
    assert (file.latest.step, file.latest.checkpoint_step) == (2, 1)
    assert file.latest.ignored_line
    assert not file.look(6.0)
    with path.open("a") as more:
        more.write('ep": 3, "checkpoint": true}\n{"step": -4}\n')
    assert file.look(7.0)
    assert (file.latest.step, file.latest.checkpoint_step) == (3, 3)
    assert file.latest.ignored_line
    path.write_text('{"step": 1}\n')
    assert file.look(8.0)
    assert (file.latest.step, file.latest.checkpoint_step) == (1, 3)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 2, "x": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"step": 2, "x": ' + "[" * 2_000 + "]" * 2_000 + "}",
        '{"step": 2, "x": "' + "y" * 5_000 + '"}',
        '{"step": ' + "9" * 4_000 + "}",
        '{"step": 9223372036854775808}',
        '{"step": 2.5}',
        "\ud800",
    ],
    ids=lambda line: line[:20],
)
def test_a_progress_line_that_cannot_be_reported_is_counted_and_passed_over(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "progress"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n', errors="surrogatepass")
    file = ProgressFile(path)
    assert file.look(0.0)
    assert file.latest is not None
    assert (file.latest.step, bool(file.latest.ignored_line)) == (3, True)


async def test_own_work_is_written_rarely_and_at_the_end(tmp_path: Path) -> None:
    path, now, written = tmp_path / "progress", [1000.0], list[dict[str, str]]()

    async def write(annotations: Mapping[str, str]) -> None:
        written.append(dict(annotations))

    reports = MemberReports(write, lambda: now[0])
    reports.begin(str(path), None)
    for step in range(41):
        work = f'{{"seconds": 0.{step + 1}, "steps": 60, "spanSeconds": 900}}'
        with path.open("a") as file:
            file.write(f'{{"step": {step}, "work": {work}}}\n{{"step": {step}, "work": "mine"}}\n')
        await reports.look()
        now[0] += 1.0
    works = [each[names.WORK] for each in written if names.WORK in each]
    assert works == [f'{{"seconds":0.{n},"steps":60,"spanSeconds":900.0}}' for n in (1, 31)]
    await reports.look(is_last=True)
    assert written[-1][names.WORK].startswith('{"seconds":0.41,')
    assert len([each for each in written if names.PROGRESS in each]) == 41


def _read(file: ProgressFile) -> None:
    file.look(0.0)
    while file.is_behind:
        file.look(0.0)


def test_facts_of_a_run_are_summed_up_beside_progress(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines = [f'{{"metric": "loss", "value": {i}, "step": {i}}}' for i in range(50_000)]
    lines[7] = '{"step": 3, "checkpoint": true}'
    lines[8:10] = ["nonsense", '{"metric": "loss"']
    path.write_text("\n".join(lines) + '\n{"metric": "loss", "val')
    file = ProgressFile(path)
    _read(file)
    loss = file.run.metrics["loss"]
    assert (loss.count, loss.min, loss.max, loss.last) == (49_997, 0, 49_999, 49_999)
    assert file.latest is not None
    assert (file.latest.step, file.latest.checkpoint_step) == (3, 3)
    assert not file.run.is_partial
    again = ProgressFile(path, file.latest)  # the node was restarted
    _read(again)
    assert again.run.facts(4_000) == file.run.facts(4_000)


def test_a_file_that_grows_faster_than_it_is_read_is_passed_over_in_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"metric": "loss", "value": 1}\n')
    file = ProgressFile(path)
    _read(file)
    with path.open("r+b") as more:
        more.truncate(1 << 30)  # holes take no room
        more.seek(0, 2)
        more.write(b'{"half": \n{"metric": "loss", "value": 2}\n{"step": 9}\n')
    looks = 0
    file.look(0.0)
    while file.is_behind:
        file.look(0.0)
        looks += 1
    assert looks < 4
    assert (file.run.metrics["loss"].last, file.run.metrics["loss"].count) == (2, 2)
    assert file.run.is_partial
    assert file.latest is not None
    assert file.latest.step == 9


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\n", "x" * 300])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(Unsupported):
        safe(name)


def test_mounts_cannot_escape_their_volume(tmp_path: Path) -> None:
    pod = pod_of(volumeMounts=[{"name": "v", "mountPath": "/m", "subPath": "a/../../x"}])
    with pytest.raises(Unsupported, match="leads out of its volume"):
        PodDir(tmp_path).mounts(pod, "main", {"v": tmp_path / "v"})
    with pytest.raises(Unsupported, match="unknown volume 'v'"):
        PodDir(tmp_path).mounts(pod, "main", {})


def test_a_pod_claims_the_larger_of_its_containers_and_its_init_containers() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 4}}}
    other = {"name": "d", "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": 2}}}
    init = {"name": "i", "resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}
    spec = {
        "containers": [container, other],
        "initContainers": [init],
        "overhead": {"cpu": "100m"},
    }
    pod = msgspec.convert({"spec": spec}, Pod)
    assert pod_requests(pod) == {
        "cpu": 1600,
        "memory": GIB,
        "nvidia.com/gpu": 2,
        "pods": 1,
    }


def test_a_sidecar_claims_beside_the_containers() -> None:
    """Kubernetes documentation, "Sidecar Containers": it runs for as long as they do."""
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}}
    main = {"name": "c", "resources": {"requests": {"cpu": 4}}}
    pod = msgspec.convert({"spec": {"containers": [main], "initContainers": [sidecar]}}, Pod)
    assert pod_requests(pod)["cpu"] == 5000


def layout(root: Path, own: str, files: dict[str, str]) -> MemoryGroups:
    """Return what finds its groups below a root with these files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MemoryGroups(root)


def test_a_group_of_version_2_is_made_beside_ours_where_memory_is_delegated(
    tmp_path: Path,
) -> None:
    base = "user.slice/app.slice"
    groups = layout(tmp_path, "0::/user.slice/app.slice/terminal.scope\n", {
        f"{base}/cgroup.subtree_control": "cpu memory pids", f"{base}/cgroup.procs": "",
        f"{base}/terminal.scope/cgroup.subtree_control": "",
        f"{base}/terminal.scope/cgroup.procs": "1",
    })  # fmt: skip
    group = groups.make("fairlead-u-main-0", 64 << 20)
    assert group == tmp_path / "sys/fs/cgroup" / base / "fairlead-u-main-0"
    assert (group / "memory.max").read_text() == str(64 << 20)
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n")
    assert kill_count(group) == 2


def test_a_group_of_version_1_is_made_below_ours(tmp_path: Path) -> None:
    groups = layout(tmp_path, "5:cpu:/\n4:memory:/docker/x\n0::/\n", {
        "memory/docker/x/memory.limit_in_bytes": "9223372036854771712",
        "memory/docker/x/cgroup.procs": "1", "cgroup.subtree_control": "", "cgroup.procs": "",
    })  # fmt: skip
    group = groups.make("fairlead-u-main-0", 1 << 20)
    assert group == tmp_path / "sys/fs/cgroup/memory/docker/x/fairlead-u-main-0"
    assert (group / "memory.limit_in_bytes").read_text() == str(1 << 20)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert kill_count(group) == 1


@pytest.mark.parametrize("own", ["", "0::/\n", "0::/a/b\n", "4:memory:/gone\n", "garbage"])
def test_without_a_group_that_may_be_written_none_is_made(tmp_path: Path, own: str) -> None:
    groups = layout(tmp_path, own, {"a/b/cgroup.procs": "", "a/b/cgroup.subtree_control": ""})
    assert groups.make("x", 1 << 20) is None


def process(proc: Path, pid: int, parent: int, pages: int, share: int = 1) -> None:
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 19, str(pages), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}")
    kilobytes = pages * PAGE_BYTES // 1024 // share
    (proc / str(pid) / "smaps_rollup").write_text(f"00-ff ---p\nRss: 1 kB\nPss: {kilobytes} kB\n")


def test_all_descendants_of_a_supervisor_count_and_shared_pages_only_once(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 1_000)  # the supervisor itself does not
    process(tmp_path, 11, 10, 300)
    process(tmp_path, 12, 11, 300)
    process(tmp_path, 20, 1, 5)
    for pid in (21, 22, 23):
        process(tmp_path, pid, 20, 300, share=3)
    (tmp_path / "self").mkdir()
    limit = 500 * PAGE_BYTES
    found = above_limit({10: limit, 20: limit, 30: limit}, tmp_path)
    assert set(found) == {10}
    assert found[10] == pytest.approx(600 * PAGE_BYTES, abs=4096)
    assert above_limit({10: 600 * PAGE_BYTES}, tmp_path) == {}


@pytest.mark.parametrize(
    ("code", "signal", "reason"), [(0, 9, "OOMKilled"), (1, 0, "OOMKilled"), (0, 0, "Completed")]
)
def test_a_program_that_survives_the_kill_of_a_child_for_memory_has_completed(
    tmp_path: Path, code: int, signal: int, reason: str
) -> None:
    for name, content in (
        ("launch.json", '{"memoryBytes": 1048576}'), ("memory.json", '{"usedBytes": 2097152}'),
        ("started.json", "{}"), ("exit.json", msgspec.json.encode(ExitFile(code, signal, ""))),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    run = Run(tmp_path, "boot")
    ended = run.exit()
    assert ended is not None
    assert recorded_end(run, ended).reason == reason


def test_a_volume_of_a_secret_is_awaited_and_is_for_the_user_alone(tmp_path: Path) -> None:
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
    }
    pod, known = msgspec.convert(body, Pod), dict[str, Secret]()
    config, directory = ConfigData(lambda _: None, known.get), PodDir(tmp_path / "pod")
    with pytest.raises(ConfigMissing, match='secret "s" not found'):
        directory.materialise(pod, config, tmp_path)
    known["s"] = Secret(data={"key": "/wA="})
    file = directory.materialise(pod, config, tmp_path)["v"] / "key"
    assert file.read_bytes() == b"\xff\x00"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)]
    assert modes == [0o600, 0o700]
    known["s"] = Secret(data={"key": "%"})
    with pytest.raises(Unsupported, match="secret s has data that is not base64"):
        directory.materialise(pod, config, tmp_path)


def test_a_look_for_changed_configuration_waits_for_the_next_change_each_time() -> None:
    async def main() -> None:
        client = FakeClient()
        mirrors = ConfigMirrors(client, LoopClock(0.0), random.Random(1), SILENT)

        async def mirror() -> None:
            async with asyncio.TaskGroup() as group:
                mirrors.start(group)

        running = asyncio.create_task(mirror())
        await mirrors.wait_synced()
        for kind, name in ((CONFIG_MAPS, "a"), (SECRETS, "b"), (CONFIG_MAPS, "c")):
            waiting = asyncio.create_task(mirrors.next_change().wait())
            await asyncio.sleep(10)
            assert not waiting.done()
            await client.create(kind, {"metadata": {"name": name}}, namespace="default")
            await asyncio.sleep(10)
            assert waiting.done()
        assert mirrors.of("default").config_map("c") == {}
        running.cancel()

    run(main())


def test_a_container_says_the_end_of_its_termination_log(tmp_path: Path) -> None:
    run = Run(tmp_path / "containers" / "main" / "0", "boot")
    run.path.mkdir(parents=True)
    ended = ExitFile(0, 0, "", 1.0, 2.0)
    assert recorded_end(run, ended).message == ""
    log = run.path.parent / "termination-log"
    log.write_text("measured")
    assert recorded_end(run, ended).message == "measured"
    log.write_bytes(b"x" * 5000 + b"\xff end")
    message = recorded_end(run, ended).message
    assert (len(message), message[-5:]) == (4096, "� end")
    log.unlink()
    log.mkdir()
    assert recorded_end(run, ended).message == "", "its own doing, and no fault of the node"
