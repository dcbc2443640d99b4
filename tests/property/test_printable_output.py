"""Whatever objects, logs and errors hold: text views show it, and no terminal obeys it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.golden.cli_world import as_asked, jobs, nodes
from tests.golden.test_teams import teams

from fairlead.api.cluster.fleet import Fleet, FleetStatus
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolDecision,
    Provider,
    ProviderType,
)
from fairlead.api.cluster.team import Reservation
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import FLEETS, JOBS, NODE_POOLS, NODES, TEAMS, Resource
from fairlead.api.status import ApiError, Forbidden, InternalError, NotFound
from fairlead.app.queries.messages import FleetLine, HistoryLine
from fairlead.cli.app import run
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.records import ended_jobs
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import ObjectList, Request, RequestVerb

HOSTILE = (
    "\x1b]0;PWNED\x07", "\x1b[2J", "\x9b31m", "\x7f", "\r", "\tx", "\n  where    v00001",
    "\u202egnp.exe", "\u2066", "\u200b", "\u2028", "\x00", "\ud800", "\U000e0041",
)  # fmt: skip
AT = "2026-01-01T00:00:00Z"


def harmful(text: str) -> list[str]:
    """What a terminal would obey, or would not show."""
    return [c for c in text if not c.isprintable() and c != "\n"]


def poisoned(value: Any, choose: Callable[[], str]) -> Any:
    """The same object with something added to texts of it, but for those that views must parse."""
    if isinstance(value, msgspec.Struct):
        fields = {
            name: poisoned(getattr(value, name), choose)
            for name in value.__struct_fields__
            if not name.endswith(("_at", "_time", "timestamp", "allocatable", "capacity", "added"))
            and name not in ("at", "until", "requests", "limits", "template")
        }
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, dict):
        return {key: poisoned(item, choose) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(poisoned(item, choose) for item in value)
    return value + choose() if type(value) is str else value


def pool() -> NodePool:
    """A node pool with something to say."""
    decision = PoolDecision(AT, "Launch", "Demand", "8 nodes in zone-a", {"nodes": 8})
    return NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(Provider(ProviderType.AWS), NodeTemplate({"cpu": "96"}), max=64),
        NodePoolStatus(nodes=2, wanted=3, message="held back", decisions=(decision,)),
    )


class PoisonedApi(Api):
    """A cluster of objects whose texts were written by an attacker; found by their first names."""

    def __init__(self, choose: Callable[[], str], error: ApiError | None = None) -> None:
        super().__init__(Connection(server="http://127.0.0.1:7443", source="a test"))
        self.error = error
        seen = FleetStatus(blind=("silent",), message="too few")
        fleet = Fleet(ObjectMeta(name="fleet"), status=seen)
        held = Reservation("workshop", AT, AT)
        of_teams = [
            replace(each, spec=replace(each.spec, reservations=(held,))) for each in teams()
        ]
        world: dict[Resource[Any], list[Any]] = {
            JOBS: jobs(), NODES: nodes(), TEAMS: of_teams, NODE_POOLS: [pool()],
            FLEETS: [fleet],
        }  # fmt: skip
        self.objects = {
            resource.plural: {each.metadata.name: poisoned(each, choose) for each in found}
            for resource, found in world.items()
        }

    def call(self, request: Request[Any]) -> Any:
        """Return what is asked for."""
        if self.error is not None:
            raise self.error
        resource = request.resource
        found = self.objects.get(resource.plural, {})
        if request.verb is RequestVerb.LIST:
            return ObjectList(tuple(as_asked(resource, each) for each in found.values()), "1")
        if request.name not in found:
            raise NotFound(f"{request.name} not found")
        return as_asked(resource, found[request.name])

    def request(self, method: str, path: str, **_: Any) -> Any:
        """Answer nothing else."""
        raise self.error or NotFound("404 page not found")


def output(api: PoisonedApi, *arguments: str) -> tuple[str, str]:
    """What a command writes to stdout and stderr; @KIND is the name of the first one."""
    out, err = StringIO(), StringIO()
    arguments = tuple(
        next(iter(api.objects[each[1:]].values())).metadata.name if each[0] == "@" else each
        for each in arguments
    )
    with patch.object(Common, "connect", lambda _: api), redirect_stdout(out), redirect_stderr(err):
        run(list(arguments))
    assert "a fault of fairlead" not in err.getvalue()
    return out.getvalue(), err.getvalue()


VIEWS = (
    ("ps",), ("ps", "-a", "-o", "wide"), ("ps", "-A"), ("ps", "-o", "name"),
    *(("why", job.metadata.name) for job in jobs()),
    ("nodes",), ("nodes", "-o", "wide"), ("nodes", "-o", "name"),
    ("teams",), ("teams", "-o", "wide"), ("quota", "vision"), ("quota", "speech"),
    ("fleet",), ("fleet", "plan"), ("fleet", "why", "@nodepools"), ("fleet", "why", "@nodes"),
    ("reservations",), ("defrag", "pretrain-1"), ("hold", "train-1"), ("cancel", "prepare-1"),
)  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_no_text_view_lets_a_control_character_pass(data: st.DataObject) -> None:
    arguments = data.draw(st.sampled_from(VIEWS))
    words = data.draw(st.lists(st.sampled_from(("", "", *HOSTILE)), min_size=1, max_size=12))
    api = PoisonedApi(_cycle(words))
    out, err = output(api, *arguments)
    assert harmful(out + err) == []
    assert out or err


def _cycle(words: Sequence[str]) -> Callable[[], str]:
    """Return the words in turn, so that each field may be another one's neighbour."""
    count = 0

    def choose() -> str:
        nonlocal count
        count += 1
        return words[count % len(words)]

    return choose


@pytest.mark.parametrize("arguments", VIEWS, ids=" ".join)
def test_the_views_show_what_they_do_not_let_pass(arguments: tuple[str, ...]) -> None:
    api = PoisonedApi(lambda: "\x1b[2J\u202e")
    out, err = output(api, *arguments)
    assert harmful(out + err) == []
    assert r"\x1b" in out or arguments[0] in ("cancel", "defrag", "hold")


def test_a_line_feed_in_a_field_begins_no_line() -> None:
    forged = "\nforged  1  Running"
    for arguments in VIEWS:
        out, _ = output(PoisonedApi(lambda: forged), *arguments)
        assert [line for line in out.splitlines() if line.startswith("forged")] == []


@settings(max_examples=20)
@given(st.sampled_from(HOSTILE[:-2]) | st.text(st.characters(exclude_categories=["Cs"])))
def test_json_and_yaml_are_printable_and_say_the_same(text: str) -> None:
    api = PoisonedApi(lambda: text)
    whole = [to_wire(each) for each in api.objects["jobs"].values()]
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        out, _ = output(api, "ps", "-a", "-o", form)
        assert harmful(out) == []
        assert sorted(map(json.dumps, read(out)["items"])) == sorted(map(json.dumps, whole))


@settings(max_examples=20)
@given(st.sampled_from(HOSTILE), st.sampled_from((Forbidden, InternalError, NotFound)))
def test_errors_of_the_api_are_shown_escaped(text: str, kind: type[ApiError]) -> None:
    api = PoisonedApi(lambda: "", kind(f"no{text}way"))
    out, err = output(api, "ps")
    assert harmful(out + err) == []
    assert "no" in err


@settings(max_examples=20)
@given(st.sampled_from(HOSTILE))
def test_records_of_jobs_and_of_the_fleet_are_shown_escaped(text: str) -> None:
    job = HistoryLine(
        "u1", f"default{text}", f"a{text}", "Failed", f"ana{text}", reason="Exit",
        message=f"no{text}", member_count=1, finished_at_ms=1, document={"a": text},
    )  # fmt: skip
    line = FleetLine(1, f"h100{text}", f"Refused{text}", f"Why{text}", f"no{text}")
    api = PoisonedApi(lambda: "")
    with patch.object(
        ended_jobs, "_read", lambda _s, _b, _q, type_: [job if type_ is HistoryLine else line]
    ):
        for form in ("table", "wide", "json", "yaml", "name"):
            for command in (["history", "-A"], ["fleet", "history"]):
                out, err = output(api, *command, "-o", form)
                assert harmful(out + err) == []
                assert out or form == "name"


@pytest.mark.parametrize("form", ["text", "json", "yaml"])
@pytest.mark.parametrize("text", [each for each in HOSTILE if each != "\ud800"])
def test_the_analysis_of_an_audit_log_is_printable(text: str, form: str) -> None:
    entries = [audit_entry(number, f"evil{text}/1.0") for number in range(200)]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "audit.log"
        log.write_text("".join(json.dumps(each) + "\n" for each in entries))
        out, err = output(PoisonedApi(lambda: ""), "doctor", "audit", str(log), "-o", form)
    assert harmful(out + err) == []
    assert "evil" in out


def audit_entry(number: int, agent: str) -> dict[str, Any]:
    """A request of a list by a program that names itself so."""
    at = f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000000Z"
    return {
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": str(number), "stage": "ResponseComplete", "requestURI": "/api/v1/pods",
        "verb": "list", "user": {"username": f"user-{agent}", "groups": ["g"]},
        "sourceIPs": ["10.0.0.1"], "userAgent": agent,
        "objectRef": {"resource": "pods", "apiVersion": "v1"}, "responseStatus": {"code": 200},
        "requestReceivedTimestamp": at, "stageTimestamp": at,
    }  # fmt: skip


def test_only_our_own_colours_are_added() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    api = PoisonedApi(lambda: "\x1b[31m")
    with patch.object(Common, "connect", lambda _: api), redirect_stdout(out), patch.dict(
        "os.environ", {"TERM": "xterm", "NO_COLOR": ""}
    ):  # fmt: skip
        run(["ps", "-A"])
    assert "\x1b[1m" in out.getvalue()
    assert "\x1b[31m" not in out.getvalue().replace("\x1b[31mFailed", "")
