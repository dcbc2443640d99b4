"""Broken manifests by the dozen: every mistake is named with its place, nothing is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.disaster_world import job_names, log_of_cluster

from fairlead.api.resources import JOBS
from fairlead.cli.main import guarded

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("manifests")]

GOOD = """\
apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: broken}
spec:
  suspend: true
  roles:
  - name: worker
    count: 2
    template:
      spec:
        containers:
        - name: main
          command: [sleep, "1"]
          resources: {requests: {cpu: 100m}}
"""
CONTAINER = "spec.roles[0].template.spec.containers[0]"


def changed(*pairs: str) -> str:
    """Return the good manifest with replacements: old, new, old, new..."""
    text = GOOD
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


#: What is wrong: the manifest, and for each mistake its code and its place as `line path`.
BROKEN: dict[str, tuple[str | bytes, list[str]]] = {
    "count is a text": (changed("count: 2", "count: two"), ["E103 8 spec.roles[0].count"]),
    "count is quoted": (changed("count: 2", 'count: "2"'), ["E103 8 spec.roles[0].count"]),
    "no members": (changed("count: 2", "count: 0"), ["E103 8 spec.roles[0].count"]),
    "negative members": (changed("count: 2", "count: -4"), ["E103 8 spec.roles[0].count"]),
    "half a member": (changed("count: 2", "count: 1.5"), ["E103 8 spec.roles[0].count"]),
    "members as a power": (changed("count: 2", "count: 1e3"), ["E103 8 spec.roles[0].count"]),
    "too many members": (changed("count: 2", "count: 100001"), ["E103 8 spec.roles[0].count"]),
    "members beyond numbers": (
        changed("count: 2", "count: " + "9" * 400), ["E103 8 spec.roles[0].count"]),
    "count is null": (changed("count: 2", "count:"), ["E103 8 spec.roles[0].count"]),
    "count is a list": (changed("count: 2", "count: [2]"), ["E103 8 spec.roles[0].count"]),
    "no roles": (GOOD[: GOOD.index("  roles")], ["E103 4 spec.roles"]),
    "empty roles": (GOOD[: GOOD.index("  roles")] + "  roles: []\n", ["E103 6 spec.roles"]),
    "roles is a mapping": (
        GOOD[: GOOD.index("  roles")] + "  roles: {a: 1}\n", ["E103 6 spec.roles"]),
    "no template": (
        GOOD[: GOOD.index("    template")], ["E103 7 spec.roles[0].template"]),
    "no containers": (
        GOOD[: GOOD.index("        containers")] + "        containers: []\n",
        ["E103 11 spec.roles[0].template.spec.containers"]),
    "command is a text": (
        changed('[sleep, "1"]', "sleep 1"), [f"E103 13 {CONTAINER}.command"]),
    "a number among words": (
        changed('[sleep, "1"]', "[sleep, 1]"), [f"E103 13 {CONTAINER}.command[1]"]),
    "quantity": (changed("100m", "100mm"), [f"E103 14 {CONTAINER}.resources.requests.cpu"]),
    "negative quantity": (changed("100m", "-1"), [f"E103 14 {CONTAINER}.resources.requests.cpu"]),
    "huge quantity": (changed("100m", "1e99999"), [f"E103 14 {CONTAINER}.resources.requests.cpu"]),
    "half a device": (
        changed("cpu: 100m", "nvidia.com/gpu: 500m"),
        [f"E103 14 {CONTAINER}.resources.requests.nvidia.com/gpu"]),
    "unknown field": (changed("suspend: true", "colour: red"), ["E102 5 spec.colour"]),
    "misspelt field": (changed("suspend", "suspended"), ["E102 5 spec.suspended"]),
    "misspelt in the container": (
        changed("command", "comand"), [f"E102 13 {CONTAINER}.comand"]),
    "three at once": (
        changed("true", "yes", "count: 2", "count: -1", "100m", "lots"),
        ["E103 5 spec.suspend", "E103 8 spec.roles[0].count",
         f"E103 14 {CONTAINER}.resources.requests.cpu"]),
    "name in capitals": (changed("broken", "Broken"), ["E103 3 metadata.name"]),
    "name too long": (changed("broken", "b" * 60), ["E103 3 metadata.name"]),
    "name far too long": (changed("broken", "b" * 2000), ["E103 3 metadata.name"]),
    "name climbs": (changed("broken", "../../etc"), ["E103 3 metadata.name"]),
    "role's name too long": (changed("worker", "w" * 64), ["E103 7 spec.roles[0].name"]),
    "two roles of one name": (
        GOOD + GOOD[GOOD.index("  - name: worker") :], ["E103 15 spec.roles[1]"]),
    "waits for itself": (
        changed("suspend: true", "after: [{job: broken}]"), ["E103 5 spec.after[0].job"]),
    "waits for no state": (
        changed("suspend: true", "after: [{job: a, state: Great}]"),
        ["E103 5 spec.after[0].state"]),
    "restart of no policy": (
        changed("suspend: true", "restart: {policy: gang, limit: -1}"),
        ["E103 5 spec.restart.policy", "E103 5 spec.restart.limit"]),
    "time as a text": (
        changed("suspend: true", "timeLimitSeconds: 12h"), ["E103 5 spec.timeLimitSeconds"]),
    "checkpoint climbs": (
        changed("suspend: true", "checkpoint: {path: /a/../b}"), ["E103 5 spec.checkpoint.path"]),
    "node is chosen": (
        changed("      spec:\n        containers", "      spec:\n        nodeName: n\n"
                "        containers"),
        ["E103 11 spec.roles[0].template.spec.nodeName"]),
    "apiVersion of tomorrow": (changed("v1alpha1", "v9"), ["E105 1 apiVersion"]),
    "no such kind": (changed("kind: Job", "kind: Jbo"), ["E105 2 kind"]),
    "no kind": (changed("kind: Job\n", ""), ["E103 1 kind"]),
    "key stands twice": (changed("count: 2", "count: 2\n    count: 3"), ["E107 9 "]),
    "tab": (changed("  suspend", "\tsuspend"), ["E101 5 "]),
    "unclosed": (changed("{name: broken}", "{name: broken"), ["E101 4 "]),
    "unknown alias": (changed("true", "*yes"), ["E101 5 "]),
    "text": ("sleep 600", ["E103 1 "]),
    "empty": ("", ["E101 - "]),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, ["E106 - "]),
    "deeper than a parser's stack": ("{a: " * 100_000, ["E106 - "]),
    "bomb": (
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20)),
        ["E106 - "]),
    "larger than 4 MB": (GOOD + "#" * (5 << 20), ["E106 - "]),
    "binary": (bytes(range(256)), ["E100 2 "]),
    "no UTF-8": (changed("worker", "wörker").encode("latin-1"), ["E100 7 "]),
}  # fmt: skip


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("manifests"))
    shell.up("--nodes", "4", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()


def found(text: str) -> set[str]:
    """Return what an error text names, as `code line path`."""
    out: set[str] = set()
    for part in re.split(r"^error\[", text, flags=re.MULTILINE)[1:]:
        line = re.search(r"--> \S+?:(\d+):\d+", part)
        path = re.search(r"-->.*`(.*)`", part)
        out.add(f"{part[:4]} {line[1] if line else '-'} {path[1] if path else ''}")
    return out


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_refused_with_every_mistake_and_its_place(
    shell: Shell,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_KUBECONFIG", str(shell.data / "kubeconfig"))
    content, mistakes = BROKEN[name]
    file = tmp_path / "job.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code = guarded(["submit", "-f", str(file)])  # in this process: dozens take as long to start
    out, err = capsys.readouterr()
    assert code == 2, err
    assert set(mistakes) <= found(err), err
    assert out == ""
    assert "Traceback" not in err
    assert max(map(len, err.splitlines())) < 1000


def test_the_table_is_about_the_mistakes_alone(shell: Shell) -> None:
    accepted = shell.run("submit", "-f", "-", "--dry-run", stdin=GOOD)
    assert "nothing was stored" in accepted.err


def test_of_all_these_nothing_was_stored_and_no_fault_logged(shell: Shell) -> None:
    """Runs after the table: the cluster is as empty as it was."""
    assert job_names(shell) == set()
    assert "Traceback" not in log_of_cluster(shell)
    assert "rashed" not in log_of_cluster(shell)


def as_json(**changes: Any) -> dict[str, Any]:
    """Return the good manifest as JSON with some fields of its spec changed."""
    container = {"name": "main", "command": ["sleep", "1"]}
    role = {"name": "worker", "count": 2, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Job", "metadata": {"name": "broken"},
        "spec": {"suspend": True, "roles": [role], **changes},
    }  # fmt: skip


def role(**changes: Any) -> dict[str, Any]:
    """Return the good manifest as JSON with its role changed."""
    job = as_json()
    job["spec"]["roles"][0].update(changes)
    return job


def containers(*values: Any) -> dict[str, Any]:
    """Return the good manifest as JSON with other containers."""
    return role(template={"spec": {"containers": list(values)}})


KIND = {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
API_BROKEN: dict[str, tuple[Any, int, set[str]]] = {
    "no spec": (KIND | {"metadata": {"name": "broken"}}, 422, {"spec"}),
    "spec is a list": (KIND | {"metadata": {"name": "broken"}, "spec": []}, 422, {"spec"}),
    "no roles": (as_json(roles=[]), 422, {"spec.roles"}),
    "roles is null": (as_json(roles=None), 422, {"spec.roles"}),
    "three at once": (
        as_json(priority=1 << 40, restart={"limit": -1}, timeLimitSeconds=0), 422,
        {"spec.priority", "spec.restart.limit", "spec.timeLimitSeconds"}),
    "count": (role(count="2"), 422, {"spec.roles[0].count"}),
    "count beyond numbers": (role(count=10**30), 422, {"spec.roles[0].count"}),
    "role without template": (role(template=None), 422, {"spec.roles[0].template"}),
    "container is a text": (containers("main"), 422, {CONTAINER}),
    "two containers of one name": (
        containers({"name": "a"}, {"name": "a"}), 422,
        {"spec.roles[0].template.spec.containers[1].name"}),
    "container climbs": (containers({"name": "../../x"}), 422, {f"{CONTAINER}.name"}),
    "long quantity": (
        containers({"name": "a", "resources": {"requests": {"cpu": "9" * 100_000}}}), 422,
        {f"{CONTAINER}.resources.requests.cpu"}),
    "name climbs": ({**as_json(), "metadata": {"name": "../x"}}, 422, {"metadata.name"}),
    "name is long": ({**as_json(), "metadata": {"name": "b" * 300}}, 422, {"metadata.name"}),
    "name is null": ({**as_json(), "metadata": {"name": None}}, 422, {"metadata.name"}),
    "name is a number": ({**as_json(), "metadata": {"name": 7}}, 400, set()),
    "labels is a list": (
        {**as_json(), "metadata": {"name": "broken", "labels": ["a"]}}, 400, set()),
    "large annotations": (
        {**as_json(), "metadata": {"name": "broken", "annotations": {"a": "b" * 300_000}}}, 422,
        {"metadata.annotations"}),
    "another kind": ({**as_json(), "kind": "Pod"}, 400, set()),
    "another namespace": (
        {**as_json(), "metadata": {"name": "broken", "namespace": "other"}}, 400, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", API_BROKEN)
def test_the_api_names_every_field_that_it_refuses(shell: Shell, name: str) -> None:
    body, code, fields = API_BROKEN[name]
    token = (shell.data / "token").read_text().strip()
    connection = shell.https()
    try:
        connection.request(
            "POST", "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs", json.dumps(body),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        answer = connection.getresponse()
        status = json.loads(answer.read())
    finally:
        connection.close()
    assert answer.status == code, status
    causes = (status.get("details") or {}).get("causes", [])
    assert fields <= {cause.get("field") for cause in causes}, status
    assert status["message"]
    assert job_names(shell) == set()
