"""Settings of the controllers: their file, their way to the controllers, their page."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import inspect
import json
import random
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Meta
from prometheus_client import CollectorRegistry

from fairlead.api.jobs.job_defaults import JobDefaults, JobMaxima, JobTerms
from fairlead.api.jobs.job_mounts import EmptyDir, JobMount
from fairlead.api.meta import to_wire
from fairlead.api.resources import CRDS, JOBS, NODES
from fairlead.api.schema import crd
from fairlead.api.values.egress import TrafficDirection
from fairlead.app.configuration.controller_settings import (
    ControllerSettings,
    JobsSettings,
    PlacementSettings,
    load_settings,
)
from fairlead.app.configuration.policies import Policies
from fairlead.app.configuration.settings import UpFlags, remember, settle
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.network import DestinationLimit
from fairlead.decide.use.idle import IdleMode, IdlePolicy
from fairlead.decide.use.use_samples import UsePolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.input.errors import CliError, Code
from fairlead.input.sections import description_of, fields_of, plain
from fairlead.input.yamlmarks import BYTES_MAX
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values
from fairlead.model.asks.topology import Level
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node

ROOT = Path(__file__).resolve().parents[3]


def read(tmp_path: Path, text: str) -> ControllerSettings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return load_settings(str(path))


#: Nodes of a cluster with settings say nothing of what members used, unless the settings say so.
DEFAULTS = Policies(use=UsePolicy(sample_seconds=60))


def test_an_administrators_tests_of_nodes_are_settings_and_each_mistake_has_its_place(
    tmp_path: Path,
) -> None:
    text = """health:
  ownTests:
    - {name: site-ib, command: [/opt/ib, -q], suites: [quick], action: Reboot, late: Failed,
       figures: [{name: gbps, unit: Gbit/s, better: higher}]}
"""
    (own,) = read(tmp_path, text).policies(JobsPolicy()).health.own_tests
    assert (own.command, own.action.value, own.timeout_seconds) == (("/opt/ib", "-q"), "Reboot", 60)
    assert own.kind_of("gbps").better.value == "higher"
    bad = """health:
  ownTests:
    - {name: cpu, command: [ib], suites: [quik], action: None}
    - {name: a, command: [/ib], suites: [quick]}
    - {name: a, command: [/ib], suites: [quick]}
"""
    with pytest.raises(CliError) as raised:
        read(tmp_path, bad)
    found = [(p.where.rpartition("settings.yaml:")[2], p.field) for p in raised.value.problems]
    assert found == [
        ("3:8", "health.ownTests[0].name"),
        ("3:29", "health.ownTests[0].command[0]"),
        ("3:34", "health.ownTests[0].suites"),
        ("3:50", "health.ownTests[0].action"),
        ("5:8", "health.ownTests[2].name"),
    ]


def test_without_a_file_or_a_field_the_policies_keep_their_defaults(tmp_path: Path) -> None:
    assert load_settings("").policies(JobsPolicy()) == DEFAULTS
    assert read(tmp_path, "# nothing\n").policies(JobsPolicy()) == DEFAULTS


def _defaults(type_: type[Any]) -> dict[str, ast.expr]:
    """Return the defaults of a class as they stand in its source."""
    (found,) = ast.parse(inspect.getsource(type_)).body
    assert isinstance(found, ast.ClassDef)
    return {
        each.target.id: each.value
        for each in found.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value
    }


def test_a_setting_and_its_policy_state_a_default_once() -> None:
    """One of the two refers to the other; an empty list is nothing to keep in step."""
    doubled: list[str] = []
    shared = 0
    own = Policies()
    for section in msgspec.structs.fields(ControllerSettings):
        policy = getattr(own, section.name, None)
        if policy is None or section.name in ("use", "terms"):  # 60 s by default, but 0 in process
            continue
        theirs, ours = _defaults(type(policy)), _defaults(section.type)
        for name in theirs.keys() & ours.keys():
            shared += 1
            both = [ast.unparse(each) for each in (theirs[name], ours[name])]
            if both != ["()", "()"] and sum(each.startswith("_") for each in both) != 1:
                doubled.append(f"{section.name}.{name}: {' and '.join(both)}")
    assert shared > 90
    assert sorted(doubled) == []


def test_a_field_replaces_that_of_its_policy_and_nothing_else(tmp_path: Path) -> None:
    text = "jobs: {infrastructureLimitMax: 7}\nadoption: {refusalsMax: 2}\n"
    own = JobsPolicy(peer_naming=PeerNaming.DNS, checkpoint_root="/ckpt")
    wanted = Policies()
    assert read(tmp_path, text).policies(own) == Policies(
        replace(own, infrastructure_limit_max=7),
        wanted.placement,
        replace(wanted.adoption, refusals_max=2),
        use=DEFAULTS.use,
    )


def test_a_file_over_the_limit_of_size_is_refused_not_read_in_part(tmp_path: Path) -> None:
    text = "jobs: {infrastructureLimitMax: 7}\n#"
    text += "\u00e9" * ((BYTES_MAX - len(text)) // 2)
    assert read(tmp_path, text).jobs.infrastructure_limit_max == 7
    with pytest.raises(CliError, match="is larger than 4 MiB") as caught:
        read(tmp_path, f"{text}\u00e9\nadoption: {{refusalsMax: 2}}\n")
    assert caught.value.problems[0].code is Code.MANIFEST_TOO_LARGE


def test_every_mistake_is_reported_with_its_place(tmp_path: Path) -> None:
    text = """\
placement:
  starvationSecond: 60
  repairHoldSeconds: 5m
jobs:
  infrastructureLimitMax: -1
  nodeLostGraceSeconds: 0
adoption: [1]
queue: {}
"""
    with pytest.raises(CliError) as caught:
        read(tmp_path, text)
    found = [(p.code, p.where.rpartition("settings.yaml:")[2], p.field)
             for p in caught.value.problems]  # fmt: skip
    assert found == [
        (Code.UNKNOWN_FIELD, "2:3", "placement.starvationSecond"),
        (Code.BAD_FIELD, "3:22", "placement.repairHoldSeconds"),
        (Code.BAD_FIELD, "5:27", "jobs.infrastructureLimitMax"),
        (Code.BAD_FIELD, "6:25", "jobs.nodeLostGraceSeconds"),
        (Code.BAD_FIELD, "7:11", "adoption"),
        (Code.UNKNOWN_FIELD, "8:1", "queue"),
    ]
    assert caught.value.problems[3].help == ("accepted: 1 to 86400",)


def test_a_list_that_is_too_short_or_too_long_is_reported_with_its_place(tmp_path: Path) -> None:
    test = "{name: a, command: [/ib], suites: [quick]}"
    long, bad = ("health: {ownTests: [" + each + "]}\n" for each in (
        ", ".join([test] * 9), "{name: a, command: [], suites: [], figures: 3}"
    ))  # fmt: skip

    def found(text: str) -> list[tuple[str, str]]:
        with pytest.raises(CliError) as raised:
            read(tmp_path, text)
        return [(p.field, p.message) for p in raised.value.problems]

    assert found(long) == [("health.ownTests", "must have at most 8 items; got 9")]
    own = "health.ownTests[0]"
    assert found(bad)[:2] == [
        (f"{own}.command", "must have at least 1 item; got 0"),
        (f"{own}.suites", "must have at least 1 item; got 0"),
    ]


def test_every_mistake_in_the_levels_of_the_topology_is_reported(tmp_path: Path) -> None:
    text = """\
topology:
  levels:
    - {name: Rack, label: net/rack}
    - {name: block, label: "net block"}
    - {name: block, label: net/rack}
"""
    with pytest.raises(CliError) as caught:
        read(tmp_path, text)
    found = [(p.where.rpartition("settings.yaml:")[2], p.field, p.message)
             for p in caught.value.problems]  # fmt: skip
    assert found == [
        ("3:8", "topology.levels[0].name", "'Rack' must consist of a-z, 0-9 and dashes"),
        ("4:21", "topology.levels[1].label",
         "'net block' is not the key of a label, such as topology.kubernetes.io/zone"),
        ("5:8", "topology.levels[2].name", "there is a level block already"),
        ("5:21", "topology.levels[2].label", "there is a level with the label net/rack already"),
    ]  # fmt: skip
    levels = read(tmp_path, "topology: {levels: [{name: rack, label: net/rack}]}\n").levels()
    assert levels == (Level("rack", "net/rack"),)


def test_defaults_and_maxima_of_jobs_reach_admission_in_the_form_of_a_team(tmp_path: Path) -> None:
    text = """\
jobDefaults:
  image: plain:1
  env: {TZ: UTC}
  mounts:
    - {path: /scratch, hostPath: /nvme}
    - {path: /dev/shm, emptyDir: Memory}
  timeLimitSeconds: 3600
jobMaxima: {timeLimitSeconds: 7200}
"""
    wanted = JobTerms(
        JobDefaults(
            image="plain:1", env={"TZ": "UTC"}, time_limit_seconds=3600,
            mounts=(
                JobMount(path="/scratch", host_path="/nvme"),
                JobMount(path="/dev/shm", empty_dir=EmptyDir.MEMORY),
            ),
        ),
        JobMaxima(7200),
    )  # fmt: skip
    assert read(tmp_path, text).policies(JobsPolicy()).terms == wanted
    assert read(tmp_path, "").policies(JobsPolicy()).terms == JobTerms()


def test_defaults_that_cannot_be_are_reported_with_their_place(tmp_path: Path) -> None:
    text = """\
jobDefaults:
  env: {"A=B": x}
  mounts:
    - {path: data, claim: data}
    - {path: /x, claim: data, secret: keys}
  timeLimitSeconds: 3600
jobMaxima: {timeLimitSeconds: 60}
"""
    with pytest.raises(CliError) as caught:
        read(tmp_path, text)
    assert [(p.where.rpartition("settings.yaml:")[2], p.field) for p in caught.value.problems] == [
        ("2:3", "jobDefaults.env"),
        ("4:8", "jobDefaults.mounts[0].path"),
        ("5:7", "jobDefaults.mounts[1]"),
        ("6:3", "jobDefaults.timeLimitSeconds"),
    ]
    with pytest.raises(CliError, match="no field 'pvc'"):
        read(tmp_path, "jobDefaults: {mounts: [{path: /x, pvc: data}]}\n")


def test_servers_of_the_doctor_are_urls_without_a_user_and_jobs_have_patterns(
    tmp_path: Path,
) -> None:
    text = """\
doctor:
  etcd: ["https://192.0.2.1:2379", "192.0.2.1:2379"]
  prometheus: https://me:secret@p.example
  prometheusJobs: [etcd=x, "etdc=x"]
"""
    with pytest.raises(CliError) as caught:
        read(tmp_path, text)
    assert [each.field for each in caught.value.problems] == [
        "doctor.etcd", "doctor.prometheus", "doctor.prometheusJobs",
    ]  # fmt: skip
    with pytest.raises(CliError) as caught:
        read(tmp_path, "doctor: {prometheusJobs: ['etcd=(']}\n")
    assert "has no regular expression" in caught.value.problems[0].message
    text = "doctor: {etcd: ['http://e:2379/'], prometheus: 'https://p/prefix', enabled: true}\n"
    policy = read(tmp_path, text).policies(JobsPolicy()).doctor
    assert (policy.etcd, policy.prometheus) == (("http://e:2379/",), "https://p/prefix")


async def _placed(settings: ControllerSettings) -> list[str]:
    """Return which jobs have a place: two nodes, one busy; the head of the queue takes both."""
    clock, ids = LoopClock(EPOCH), random.Random(2)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), clock,
        ids=lambda: f"{ids.getrandbits(128):032x}", rng=random.Random(3),
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    for name in ("n0", "n1"):
        status = to_wire(make_node(name))["status"]
        await client.create(NODES, {"metadata": {"name": name}})
        await client.patch(NODES, name, {"status": status}, subresource="status")
    controllers = Controllers(
        settings.policies(JobsPolicy()), client, MemoryHistory(),
        context=ProcessContext(clock, Metrics(CollectorRegistry(), version="test")),
    )  # fmt: skip
    services = [SupervisedService("api", service.run), *controllers.services()]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Supervisor(services, clock=clock, rng=random.Random(4)).run())
        for name, count in (("first", 1), ("head", 2), ("later", 1)):
            spec = to_wire(make_job(name, count=count, gpus=8))["spec"]
            await client.create(JOBS, {"metadata": {"name": name}, "spec": spec},
                                namespace="default")  # fmt: skip
            await asyncio.sleep(2)
        jobs = (await client.list(JOBS, namespace="default")).items
        task.cancel()
    return sorted(job.metadata.name for job in jobs if job.status.placement is not None)


def test_the_planner_of_a_cluster_in_this_process_follows_the_settings(tmp_path: Path) -> None:
    assert run(_placed(ControllerSettings())) == ["first", "later"]
    strict = read(tmp_path, "placement: {starvationSeconds: 0}\n")
    assert run(_placed(strict)) == ["first"]


def test_a_cluster_of_this_machine_continues_with_its_settings(tmp_path: Path) -> None:
    read(tmp_path, "jobs: {startSecondsMax: 60}\n")
    file = str(tmp_path / "settings.yaml")
    chosen = settle(tmp_path, UpFlags(settings_file=file))
    assert chosen.controllers == ControllerSettings(jobs=JobsSettings(start_seconds_max=60))
    remember(chosen, 7443)
    assert settle(tmp_path, UpFlags()).controllers == chosen.controllers
    assert settle(tmp_path, UpFlags(settings_file="")).controllers == ControllerSettings()


def _made(settings: ControllerSettings) -> dict[str, dict[str, Any]]:
    return {m["kind"]: m for m in manifests(Install(values=Values(settings=settings)))}


def test_an_installation_passes_the_settings_and_replaces_pods_when_they_change(
    tmp_path: Path,
) -> None:
    settings = ControllerSettings(placement=PlacementSettings(starvation_seconds=60))
    made = _made(settings)
    (text,) = made["ConfigMap"]["data"].values()
    assert read(tmp_path, text) == settings
    assert json.loads(text) == plain(settings)
    template = made["Deployment"]["spec"]["template"]
    checksum = template["metadata"]["annotations"]["fairlead.dev/settings-checksum"]
    assert checksum == hashlib.sha256(text.encode()).hexdigest()
    before = _made(ControllerSettings())["Deployment"]["spec"]["template"]
    assert before["metadata"]["annotations"]["fairlead.dev/settings-checksum"] != checksum
    (container,), volumes = template["spec"]["containers"], template["spec"]["volumes"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "settings"]
    (file,) = [each for each in container["args"] if each.startswith(mount["mountPath"])]
    assert file == f"{mount['mountPath']}/{next(iter(made['ConfigMap']['data']))}"
    name = made["ConfigMap"]["metadata"]["name"]
    assert {"name": "settings", "configMap": {"name": name}} in volumes


def test_warnings_and_the_end_of_idle_jobs_come_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("idle: {mode: Enforce, secondWarningSeconds: 3600, endSeconds: 600}\n")
    with pytest.raises(CliError) as caught:
        load_settings(str(file))
    found = "\n".join(problem.message for problem in caught.value.problems)
    assert "3600 must be after the first warning, at 3600" in found
    assert "600 must be after the second warning, at 3600" in found
    file.write_text("idle: {mode: Shadow, exceptNames: ['prod/*']}\n")
    policy = load_settings(str(file)).idle.policy()
    assert policy == IdlePolicy(IdleMode.SHADOW, except_names=("prod/*",))


def test_budgets_of_destinations_are_settings_and_each_mistake_has_its_place(
    tmp_path: Path,
) -> None:
    text = "traffic: {destinations: [{name: datasets, egress: 5G, ingress: 20G}]}\n"
    assert read(tmp_path, text).policies(JobsPolicy()).egress.destinations == (
        DestinationLimit("datasets", TrafficDirection.EGRESS, 5 * 10**9),
        DestinationLimit("datasets", TrafficDirection.INGRESS, 20 * 10**9),
    )
    file = tmp_path / "settings.yaml"
    file.write_text(
        "traffic:\n  destinations:\n  - {name: internet, egress: 5G}\n"
        "  - {name: a, egress: fast}\n  - {name: a, egress: 5G}\n  - {name: b}\n"
        "  - {name: c, ingress: 1M}\n"
    )
    with pytest.raises(CliError) as caught:
        load_settings(str(file))
    at = "traffic.destinations"
    fields = {each.field for each in caught.value.problems}
    assert fields == {f"{at}[0].name", f"{at}[1].name", f"{at}[1].egress", f"{at}[2].name",
                      f"{at}[3]", f"{at}[4].ingress"}  # fmt: skip
    said = "\n".join(each.message for each in caught.value.problems)
    for each in ("'internet' cannot have a budget", "there are 2 destinations a", "'fast' is no",
                 "neither egress nor ingress", "1M must be from 10M"):  # fmt: skip
        assert each in said


def _row(section: str, name: str, type_: Any, default: object) -> str:
    (limits,) = [each for each in get_args(type_) if isinstance(each, Meta)]
    kind = get_args(type_)[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        accepted = ", ".join(each.value for each in kind)
        return f"| `{section}.{name}` | {default} | {accepted} | {description_of(type_)} |"
    if isinstance(default, str):
        accepted = f"{limits.max_length} characters"
        return f"| `{section}.{name}` | {default} | {accepted} | {description_of(type_)} |"
    if isinstance(default, list | dict):
        most = limits.max_length or (limits.extra_json_schema or {})["maxItems"]
        accepted = f"{most} of them"
        shown = ", ".join(each["name"] for each in default) or "none"
        return f"| `{section}.{name}` | {shown} | {accepted} | {description_of(type_)} |"
    accepted, shown = "true, false", str(default).lower()
    if not isinstance(default, bool):
        accepted, shown = f"{limits.ge:,} to {limits.le:,}", f"{default:,}"
    return f"| `{section}.{name}` | {shown} | {accepted} | {description_of(type_)} |"


def test_the_page_lists_every_setting() -> None:
    wanted: list[str] = []
    for section, type_ in fields_of(ControllerSettings).items():
        defaults = plain(type_())
        wanted += [_row(section, *each, defaults[each[0]]) for each in fields_of(type_).items()]
    page = (ROOT / "docs" / "operations" / "settings.md").read_text()
    _, _, table = page.partition("## All settings")
    listed = [line for line in table.splitlines() if line.startswith("| `")]
    assert listed == wanted, "\n".join(["the table should be:", *wanted])


def test_targets_of_tickets_are_told_apart_by_their_hosts(tmp_path: Path) -> None:
    def targets(*texts: str) -> list[str]:
        text = f"notices: {{ticketsTo: [{', '.join(texts)}]}}\n"
        return [each.name for each in read(tmp_path, text).notices.tickets().targets]

    assert targets("https://desk.example/hook?x=1", "Secret", "Provider") == [
        "desk.example", "Secret", "Provider",
    ]  # fmt: skip
    with pytest.raises(CliError) as raised:
        targets("https://desk.example/a", "https://desk.example/b", "Nobody", "ftp://x/")
    assert [p.field for p in raised.value.problems] == [
        f"notices.ticketsTo[{i}]" for i in (1, 2, 3)
    ]
    assert "/b" not in str([p.message for p in raised.value.problems])
