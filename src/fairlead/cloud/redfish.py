"""Power of machines by Redfish, which the management controllers (BMCs) of servers speak.

A machine names its system, such as https://10.0.0.7/redfish/v1/Systems/1. `PowerState` says whether
it is on, and the action `ComputerSystem.Reset` changes that (DMTF DSP0266, DSP2046). The password
is sent to hosts of the inventory only: by HTTPS, and never to where a redirect leads.

A BMC that does not answer says nothing about its machine: what it said last counts, and one that
has never answered counts as on, so that it is neither launched nor taken for gone. Where more than
half of them do not answer, the list is not complete.
"""

from __future__ import annotations

import asyncio
import functools
import json
import urllib.error
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead.cloud.calls import Runner
from fairlead.cloud.provider import CloudError, RefusedByProvider
from fairlead.runtime.outside.fetch import Redirects, Web, WebAccess, origin_of

_SECONDS_MAX = 20.0
_ANSWER_BYTES_MAX = 1 << 20
#: A system that is still on so long after it was asked to shut down is switched off.
SHUTDOWN_SECONDS_MAX = 300.0
_ON = frozenset(("On", "PoweringOn", "Paused"))
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


class RedfishAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Who asks: a user of all BMCs, the file of its password, and who signed their certificates."""

    user: str
    password_file: str
    ca_file: str = ""


class _Reset(msgspec.Struct, frozen=True):
    target: str
    allowed: tuple[str, ...] = msgspec.field(
        name="ResetType@Redfish.AllowableValues", default=()
    )  # fmt: skip


class _Actions(msgspec.Struct, frozen=True):
    reset: _Reset | None = msgspec.field(name="#ComputerSystem.Reset", default=None)


class _System(msgspec.Struct, frozen=True, rename="pascal"):
    power_state: str
    actions: _Actions = _Actions()


@dataclass(slots=True)
class Redfish:
    """The BMCs of the machines of one pool."""

    account: RedfishAccount
    #: The address of the system of each machine, by id.
    systems: Mapping[str, str]
    run: Runner = asyncio.to_thread
    #: Whether each machine was on when its BMC last answered.
    _known: dict[str, bool] = field(default_factory=dict[str, bool])
    #: When each machine was first asked to shut down, by the loop's time.
    _shut_at: dict[str, float] = field(default_factory=dict[str, float])

    async def awake(self, id_: str) -> bool | None:
        """Return whether a machine is on; None when its BMC does not answer."""
        try:
            system = await self._get(id_)
        except RefusedByProvider:
            raise
        except CloudError:
            return None
        is_on = self._known[id_] = system.power_state in _ON
        if not is_on:
            self._shut_at.pop(id_, None)
        return is_on

    def last_known(self, id_: str) -> bool:
        """Return whether a machine was on when its BMC last answered."""
        return self._known.get(id_, True)

    def is_shutting_down(self, id_: str) -> bool:
        """True once a machine was asked to shut down, until it is off or must be switched off."""
        since = self._shut_at.get(id_)
        return since is not None and _now() < since + SHUTDOWN_SECONDS_MAX

    async def switch_on(self, id_: str) -> None:
        """Wake a machine; one that is on is left alone. CloudError."""
        system = await self._get(id_)
        if system.power_state not in _ON:
            await self._reset(id_, system, "On", "ForceOn")
        self._shut_at.pop(id_, None)

    async def switch_off(self, id_: str) -> None:
        """Ask a machine to shut down; switch it off when it has not within a while. CloudError."""
        if self.is_shutting_down(id_):
            return
        system = await self._get(id_)
        if system.power_state in _ON:
            forced = id_ in self._shut_at
            await self._reset(id_, system, *(() if forced else ("GracefulShutdown",)), "ForceOff")
            self._shut_at.setdefault(id_, _now())

    async def restart(self, id_: str) -> None:
        """Reset a machine; one that is off is switched on. CloudError."""
        system = await self._get(id_)
        kinds = ("ForceRestart", "PowerCycle") if system.power_state in _ON else ("On", "ForceOn")
        await self._reset(id_, system, *kinds)

    async def _reset(self, id_: str, system: _System, *types: str) -> None:
        """Send the first of these resets that the system allows."""
        reset = system.actions.reset
        if reset is None:
            raise RefusedByProvider(f"{self.systems[id_]} has no action ComputerSystem.Reset")
        allowed = [each for each in types if not reset.allowed or each in reset.allowed]
        if not allowed:
            text = f"{self.systems[id_]} allows none of {', '.join(types)}"
            raise RefusedByProvider(f"{text}; it allows {', '.join(reset.allowed)}")
        target = urllib.parse.urljoin(self.systems[id_], reset.target)
        if origin_of(target) != origin_of(self.systems[id_]):
            raise RefusedByProvider(f"{self.systems[id_]} names another host: {target}")
        await self._ask(target, {"ResetType": allowed[0]})

    async def _get(self, id_: str) -> _System:
        url = self.systems[id_]
        text = await self._ask(url, None)
        try:
            return msgspec.json.decode(text, type=_System)
        except (ValueError, RecursionError) as error:
            raise CloudError(f"{url} is no system of Redfish: {error}") from error

    async def _ask(self, url: str, body: Mapping[str, str] | None) -> bytes:
        return await self.run(functools.partial(_asked, self.account, url, body))


def check_systems(systems: Mapping[str, str]) -> None:
    """Refuse addresses to which no password may be sent; RefusedByProvider."""
    for id_, url in systems.items():
        parts = urllib.parse.urlsplit(url)
        is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
        if not (parts.hostname and (parts.scheme == "https" or is_local)) or parts.username:
            text = "accepted: https://HOST/redfish/v1/Systems/NAME"
            raise RefusedByProvider(f"machine {id_}: system {url!r}; {text}")


def _asked(account: RedfishAccount, url: str, body: Mapping[str, str] | None) -> bytes:
    """Send a request, in a thread, and return the answer; RefusedByProvider, CloudError."""
    try:
        password = Path(account.password_file).read_text(encoding="utf-8").strip()
        access = WebAccess(login=f"{account.user}:{password}", ca_file=account.ca_file)
        access.context()
    except (OSError, ValueError) as error:
        raise RefusedByProvider(f"the account of Redfish: {error}") from error
    web = Web(access, redirects=Redirects.NOWHERE, is_direct=True)
    data = None if body is None else json.dumps(body).encode()
    try:
        return web.fetch(
            url, data, accept="application/json", bytes_max=_ANSWER_BYTES_MAX,
            seconds_max=_SECONDS_MAX,
        )  # fmt: skip
    except urllib.error.HTTPError as error:
        kind = RefusedByProvider if error.code in (401, 403) else CloudError
        raise kind(f"{url}: {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise CloudError(f"{url}: {error}") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
