"""Static machines by Redfish, against a server on loopback that does what BMCs do."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairlead.cloud import redfish
from fairlead.cloud.provider import CloudError, LaunchRequest, OutOfCapacity, RefusedByProvider
from fairlead.cloud.static import StaticProvider

WAY = "/redfish/v1/Systems/"


@dataclass
class Bmcs:
    """What the BMCs know. A graceful shutdown takes as long as the test says."""

    power: dict[str, str]
    allowed: tuple[str, ...] = ("On", "GracefulShutdown", "ForceOff")
    target_host: str = ""
    redirects: bool = False
    #: Those that answer 503.
    silent: set[str] = field(default_factory=set[str])
    resets: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: The authorization of each request.
    seen: list[str] = field(default_factory=list[str])
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    def __init__(self, bmcs: Bmcs, *args: Any) -> None:
        self.bmcs = bmcs
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # as it is called
        """Nothing."""

    def answer(self, code: int, body: Any = None, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body or {}).encode())

    def begin(self) -> str | None:
        """Return the machine that is asked for; None: it is answered."""
        name = self.path.removeprefix(WAY).partition("/")[0]
        self.bmcs.seen.append(self.headers["Authorization"])
        if self.bmcs.redirects:
            self.answer(302, Location=f"{self.bmcs.url}/elsewhere")
        elif self.headers["Authorization"] != f"Basic {base64.b64encode(b'root:calvin').decode()}":
            self.answer(401)
        elif name in self.bmcs.silent:
            self.answer(503)
        elif name not in self.bmcs.power:
            self.answer(404)
        else:
            return name
        return None

    def do_GET(self) -> None:
        if (name := self.begin()) is not None:
            reset = {
                "target": f"{self.bmcs.target_host}{WAY}{name}/Actions/ComputerSystem.Reset",
                "ResetType@Redfish.AllowableValues": self.bmcs.allowed,
            }
            actions = {"#ComputerSystem.Reset": reset}
            self.answer(200, {"PowerState": self.bmcs.power[name], "Actions": actions})

    def do_POST(self) -> None:
        if (name := self.begin()) is not None:
            kind = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ResetType"]
            self.bmcs.resets.append((name, kind))
            states = {"On": "PoweringOn", "GracefulShutdown": "On", "ForceOff": "Off",
                      "PowerCycle": "On"}  # fmt: skip
            self.bmcs.power[name] = states[kind]
            self.answer(204)


@contextmanager
def bmcs(count: int = 3) -> Generator[Bmcs]:
    made = Bmcs({f"m{number}": "Off" for number in range(count)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, made))
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def inventory(made: Bmcs, directory: Path, *, password: str = "calvin", **more: Any) -> str:
    (directory / "password").write_text(f"{password}\n")
    machines = [{"id": name, "system": f"{made.url}{WAY}{name}"} for name in made.power]
    account = {"user": "root", "passwordFile": str(directory / "password")}
    body = {"machines": machines, "redfish": account, **more}
    (directory / "machines.json").write_text(json.dumps(body))
    return str(directory / "machines.json")


async def states(provider: StaticProvider) -> dict[str, str]:
    return {each.id: each.state.value for each in (await provider.instances()).instances}


def ask(token: str, count: int) -> LaunchRequest:
    return LaunchRequest(token, "metal", count)


async def test_machines_are_woken_all_or_none_and_shut_down(tmp_path: Path) -> None:
    with bmcs() as made:
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        assert await states(provider) == {}
        assert await provider.launch(ask("t1", 2)) == ("m0", "m1")
        assert await provider.launch(ask("t1", 2)) == ("m0", "m1")
        assert sorted(made.resets) == [("m0", "On"), ("m1", "On")], (
            "a repeated launch wakes none again"
        )
        assert await states(provider) == {"m0": "Running", "m1": "Running"}
        with pytest.raises(OutOfCapacity, match="1 of 2 machines"):
            await provider.launch(ask("t2", 2))
        for _ in range(2):
            await provider.terminate(("m0",))
        assert made.resets[2:] == [("m0", "GracefulShutdown")], "it is asked once"
        assert await states(provider) == {"m0": "Stopping", "m1": "Running"}
        made.power["m0"] = "Off"
        assert await states(provider) == {"m1": "Running"}
        assert await provider.launch(ask("t3", 2)) == ("m0", "m2")


async def test_a_machine_that_does_not_shut_down_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bmcs() as made:
        made.power["m0"] = "On"
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        now = [0.0]
        monkeypatch.setattr(redfish, "_now", lambda: now[0])
        await provider.terminate(("m0",))
        now[0] = redfish.SHUTDOWN_SECONDS_MAX
        assert await states(provider) == {"m0": "Running"}, "so it is ended again"
        await provider.terminate(("m0",))
        assert made.resets == [("m0", "GracefulShutdown"), ("m0", "ForceOff")]
        made.power["m0"] = "On"  # it did not obey
        await provider.terminate(("m0",))
        assert made.resets[2:] == [("m0", "ForceOff")]
        assert await states(provider) == {}


async def test_a_bmc_that_does_not_answer_says_nothing_about_its_machine(tmp_path: Path) -> None:
    with bmcs(4) as made:
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        made.power["m0"] = "On"
        assert await states(provider) == {"m0": "Running"}
        made.silent = {"m0", "m1"}
        found = await provider.instances()
        assert [each.id for each in found.instances] == ["m0"], "as they were last"
        assert found.is_complete
        assert found.warning == "2 BMCs do not answer, the first of m0"
        again = StaticProvider(provider_path(tmp_path), "metal")
        assert set(await states(again)) == {"m0", "m1"}, "a new process launches and loses neither"
        made.silent = {"m0", "m1", "m2"}
        assert not (await provider.instances()).is_complete
        with pytest.raises(CloudError, match="503"):
            await provider.terminate(("m0",))


def provider_path(directory: Path) -> str:
    return str(directory / "machines.json")


async def test_the_password_goes_to_no_other_host(tmp_path: Path) -> None:
    with bmcs() as made, bmcs() as other:
        made.target_host = other.url
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        with pytest.raises(RefusedByProvider, match="names another host"):
            await provider.launch(ask("t1", 1))
        made.redirects, made.url = True, other.url
        assert not (await provider.instances()).is_complete
        assert other.seen == []


async def test_the_password_goes_through_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bmcs() as made, bmcs() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        await provider.launch(ask("t1", 1))
        assert len(made.resets) == 1
        assert proxy.seen == []


async def test_a_wrong_password_and_a_wrong_inventory_are_refused(tmp_path: Path) -> None:
    with bmcs() as made:
        with pytest.raises(RefusedByProvider, match="401"):
            await StaticProvider(inventory(made, tmp_path, password="old"), "metal").instances()
        with pytest.raises(RefusedByProvider, match="one of power and redfish"):
            await StaticProvider(inventory(made, tmp_path, power="/bin/power"), "metal").instances()
        made.allowed = ("Nmi",)
        with pytest.raises(RefusedByProvider, match="allows none of On, ForceOn; it allows Nmi"):
            await StaticProvider(inventory(made, tmp_path), "metal").launch(ask("t", 1))
        for url in ("http://10.0.0.1/redfish/v1/Systems/1", "", "https://root:x@10.0.0.1/"):
            machines = [{"id": "m0", "system": url}]
            path = inventory(made, tmp_path, machines=machines)
            with pytest.raises(RefusedByProvider, match="accepted: https://HOST/"):
                await StaticProvider(path, "metal").instances()


async def test_a_machine_is_restarted_by_the_reset_that_its_bmc_allows(tmp_path: Path) -> None:
    with bmcs() as made:
        made.allowed = ("On", "ForceOff", "PowerCycle")
        provider = StaticProvider(inventory(made, tmp_path), "metal")
        made.power["m1"] = "On"
        await provider.restart("m1")
        await provider.restart("m2")
        assert made.resets == [("m1", "PowerCycle"), ("m2", "On")]
        with pytest.raises(RefusedByProvider, match="no machine 'm7'"):
            await provider.restart("m7")
        made.silent.add("m1")
        with pytest.raises(CloudError):
            await provider.restart("m1")
