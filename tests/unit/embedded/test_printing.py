"""The columns that kubectl shows, as functions of objects."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.values.times import format_time
from fairlead.embedded.http.answering.columns import (
    PathError,
    compile_path,
    custom_printer,
    evaluate,
)
from fairlead.embedded.printing import Printer, human_duration, pod_status, printers
from fairlead.embedded.resource_info import PrinterColumn

NOW = 1_800_000_000.0


def created(seconds_ago: float, **more: Any) -> dict[str, Any]:
    return {"name": "x", "creationTimestamp": format_time(NOW - seconds_ago), **more}


def row(group: str, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
    printer = printers()[f"{plural}.{group}" if group else plural]
    cells = printer.cells(obj, NOW)
    assert len(cells) == len(printer.columns)
    return {column.name: cell for column, cell in zip(printer.columns, cells, strict=True)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119.9, "119s"), (120, "2m"), (125, "2m5s"),
        (599, "9m59s"), (600, "10m"), (3 * 3600 - 1, "179m"), (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"), (8 * 3600 + 60, "8h"), (47 * 3600, "47h"), (48 * 3600, "2d"),
        (50 * 3600, "2d2h"), (8 * 86400 + 3600, "8d"), (729 * 86400, "729d"), (730 * 86400, "2y"),
        (731 * 86400, "2y1d"), (8 * 365 * 86400 + 86400, "8y"),
    ],
)  # fmt: skip
def test_an_age_has_two_units_at_most_and_fewer_the_longer_it_is(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def waiting(reason: str) -> dict[str, Any]:
    return {"name": "c", "state": {"waiting": {"reason": reason}}}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"name": "c", "state": {"terminated": {"exitCode": code, **more}}}


RUNNING = {"name": "c", "ready": True, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Running", "containerStatuses": [RUNNING]}}, "Running"),
        ({"status": {"containerStatuses": [waiting("ImagePullBackOff")]}}, "ImagePullBackOff"),
        ({"status": {"phase": "Succeeded", "containerStatuses": [ended(0, reason="Completed")]}},
         "Completed"),
        ({"status": {"phase": "Failed", "containerStatuses": [ended(137, signal=9)]}}, "Signal:9"),
        ({"status": {"phase": "Failed", "containerStatuses": [ended(3)]}}, "ExitCode:3"),
        ({"status": {"phase": "Running",
                     "containerStatuses": [ended(0, reason="Completed"), RUNNING]}}, "NotReady"),
        ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                     "containerStatuses": [ended(0, reason="Completed"), RUNNING]}}, "Running"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
          "status": {"phase": "Running"}}, "Terminating"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
          "status": {"phase": "Failed", "containerStatuses": [ended(1, reason="Error")]}}, "Error"),
        ({"spec": {"initContainers": [{"name": "a"}, {"name": "b"}]},
          "status": {"phase": "Pending", "initContainerStatuses": [ended(0), waiting("")]}},
         "Init:1/2"),
        ({"spec": {"initContainers": [{"name": "c"}]},
          "status": {"initContainerStatuses": [ended(2, reason="Error")]}}, "Init:Error"),
        ({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}},
         "SchedulingGated"),
    ],
)  # fmt: skip
def test_the_status_of_a_pod_says_more_than_its_phase_when_there_is_more(
    pod: dict[str, Any], status: str
) -> None:
    assert pod_status(pod) == status


def test_a_pod_row_counts_ready_containers_and_tells_the_last_restart() -> None:
    restarted = {
        **RUNNING,
        "restartCount": 3,
        "lastState": {"terminated": {"finishedAt": format_time(NOW - 300)}},
    }
    cells = row("", "pods", {
        "metadata": created(7200),
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1",
                   "containerStatuses": [restarted, {"name": "b", "state": {"running": {}}}]},
    })  # fmt: skip
    assert cells == {
        "Name": "x", "Ready": "1/2", "Status": "Running", "Restarts": "3 (5m ago)", "Age": "120m",
        "IP": "10.0.0.1", "Node": "n1", "Nominated Node": "<none>", "Readiness Gates": "<none>",
    }  # fmt: skip


def test_a_cordoned_node_shows_roles_and_both_states() -> None:
    cells = row("", "nodes", {
        "metadata": created(90, labels={"node-role.kubernetes.io/worker": "",
                                        "node-role.kubernetes.io/gpu": ""}),
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
                   "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                   "nodeInfo": {"kubeletVersion": "v1.34.0", "osImage": "Linux"}},
    })  # fmt: skip
    assert cells["Status"] == "Ready,SchedulingDisabled"
    assert cells["Roles"] == "gpu,worker"
    assert (cells["Age"], cells["Version"], cells["Internal-IP"]) == ("90s", "v1.34.0", "10.1.1.1")
    assert cells["External-IP"] == "<none>"


def test_an_event_row_names_its_object_and_when_it_was_last_seen() -> None:
    cells = row("", "events", {
        "metadata": created(60), "type": "Warning", "reason": "Lost", "message": " gone \n",
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"},
        "source": {"component": "node", "host": "n1"}, "count": 4,
        "firstTimestamp": format_time(NOW - 60), "lastTimestamp": format_time(NOW - 5),
    })  # fmt: skip
    assert (cells["Last Seen"], cells["First Seen"], cells["Count"]) == ("5s", "60s", 4)
    assert (cells["Object"], cells["Message"], cells["Source"]) == ("pod/p", "gone", "node, n1")


def test_other_kinds_show_what_people_know() -> None:
    ports = [{"port": 80}, {"port": 53, "nodePort": 3, "protocol": "UDP"}]
    spec = {"clusterIP": "None", "selector": {"b": "2", "a": "1"}, "ports": ports}
    service = {"metadata": created(1), "spec": spec}
    assert list(row("", "services", service).values()) == [
        "x", "ClusterIP", "None", "<none>", "80/TCP,53:3/UDP", "1s", "a=1,b=2",
    ]  # fmt: skip
    claim = {"metadata": created(1), "spec": {"volumeName": "v", "storageClassName": "s"},
             "status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteMany"]}}  # fmt: skip
    assert list(row("", "persistentvolumeclaims", claim).values())[:6] == [
        "x", "Bound", "v", "1Gi", "RWX", "s",
    ]  # fmt: skip
    budget = {"metadata": created(1), "spec": {"maxUnavailable": "20%"}}
    assert row("policy", "poddisruptionbudgets", budget)["Max Unavailable"] == "20%"
    config = {"metadata": created(1), "data": {"a": ""}, "binaryData": {"b": ""}}
    assert row("", "configmaps", config)["Data"] == 2


@pytest.mark.parametrize(("key", "printer"), printers().items())
@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None, "spec": 3, "status": ["x"]},
        {"metadata": {"name": 5, "labels": "x", "creationTimestamp": "yesterday"},
         "spec": {"containers": [1], "ports": "no"}, "status": {"conditions": {"a": 1}}},
    ],
)  # fmt: skip
def test_an_odd_object_still_has_a_row(key: str, printer: Printer, odd: dict[str, Any]) -> None:
    assert len(printer.cells(odd, NOW)) == len(printer.columns), key


OBJECT: dict[str, Any] = {
    "a": {"b.c": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Old"}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b\\.c[0].n", [1]), (".a['b.c'][-1].t", ["y"]), (".a.b\\.c[*].n", [1, 2]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='None')].status", []),
        (".a.b\\.c[?(@.n>1)].t", ["y"]), (".a.b\\.c[?(@.n<'z')].t", []),
        ("{.a.b\\.c[1].n}", [2]), (".missing.path", []), (".a.b\\.c[7]", []),
    ],
)  # fmt: skip
def test_a_printer_column_path_finds_what_upstream_finds(path: str, found: list[Any]) -> None:
    assert evaluate(compile_path(path), OBJECT) == found


@pytest.mark.parametrize("path", [".a[", ".a[?(@.b==nope)]", ".a(b)", "..a"])
def test_a_path_that_makes_no_sense_is_refused_with_the_place(path: str) -> None:
    with pytest.raises(PathError):
        compile_path(path)


def test_custom_columns_are_typed_and_blank_where_nothing_fits() -> None:
    printer = custom_printer((
        PrinterColumn("State", "", "string", json_path=".status.state"),
        PrinterColumn("Count", "", "integer", json_path=".status.state"),
        PrinterColumn("Since", "", "date", json_path=".metadata.creationTimestamp"),
        PrinterColumn("Labels", "", "string", json_path=".metadata.labels", priority=1),
        PrinterColumn("Broken", "", "string", json_path=".a["),
        PrinterColumn("Ready", "", "boolean", json_path=".status.ready"),
        PrinterColumn("Failed", "", "integer", json_path=".status.failed"),
    ))  # fmt: skip
    status = {"state": "Running", "ready": False, "failed": 0}
    obj = {"metadata": created(30, labels={"a": "b"}), "status": status}
    assert printer.cells(obj, NOW) == ["x", "Running", None, "30s", '{"a":"b"}', None, False, 0]
    assert [c.priority for c in printer.columns] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert custom_printer(()).cells(obj, NOW) == ["x", "30s"]
