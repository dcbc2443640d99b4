"""The ConfigMaps and Secrets that pods of the local node refer to: mirrored, and looked up by name.

Both are mirrored whole, so that a pod that waits for one starts as soon as it is there.
"""

from __future__ import annotations

import asyncio
import binascii
import random
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.api.kubernetes.core import ConfigMap, Secret
from fairlead.api.resources import CONFIG_MAPS, SECRETS
from fairlead.embedded.local.containers import Unsupported
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.runtime.watching.mirror import Change, Mirror


class ConfigData:
    """The ConfigMaps and Secrets of one namespace, as the node sees them now."""

    def __init__(
        self,
        find_map: Callable[[str], ConfigMap | None],
        find_secret: Callable[[str], Secret | None],
    ) -> None:
        self._find_map = find_map
        self._find_secret = find_secret

    def config_map(self, name: str) -> Mapping[str, str] | None:
        """Return what variables are made of, or None when there is no such ConfigMap."""
        found = self._find_map(name)
        return None if found is None else found.data

    def files(self, name: str) -> Mapping[str, bytes] | None:
        """Return a ConfigMap as a volume has it, `binaryData` too; None: there is no such one."""
        found = self._find_map(name)
        if found is None:
            return None
        decoded = _decoded(found.binary_data, f"configmap {name} has binaryData")
        return {k: v.encode() for k, v in found.data.items()} | decoded

    def secret_files(self, name: str) -> Mapping[str, bytes] | None:
        """Return a Secret as a volume has it; None: there is no such one. Unsupported."""
        found = self._find_secret(name)
        return None if found is None else _decoded(found.data, f"secret {name} has data")

    def secret(self, name: str) -> Mapping[str, str] | None:
        """Return the data as texts, or None when there is no such Secret; Unsupported."""
        found = self._find_secret(name)
        if found is None:
            return None
        try:
            return {k: b64decode(v, validate=True).decode() for k, v in found.data.items()}
        except (binascii.Error, UnicodeDecodeError):
            raise Unsupported(
                f"secret {name} holds a value that is no text; variables take texts only"
            ) from None


def _decoded(values: Mapping[str, str], whose: str) -> dict[str, bytes]:
    try:
        return {key: b64decode(value, validate=True) for key, value in values.items()}
    except binascii.Error:
        raise Unsupported(f"{whose} that is not base64") from None


class ConfigMirrors:
    """Mirrors of both kinds. `run` must run before anything is looked up."""

    def __init__(self, client: Client, clock: Clock, rng: random.Random, log: Logger) -> None:
        self._maps: Mirror[ConfigMap] = Mirror(client, CONFIG_MAPS, clock=clock, rng=rng, log=log)
        self._secrets: Mirror[Secret] = Mirror(client, SECRETS, clock=clock, rng=rng, log=log)
        self._moved = asyncio.Event()

    def start(self, group: asyncio.TaskGroup) -> None:
        """Mirror, as tasks of the group, until they are cancelled."""
        for mirror in (self._maps, self._secrets):
            group.create_task(mirror.run())

    async def wait_synced(self) -> None:
        """Return once all that exists is known."""
        await self._maps.wait_synced()
        await self._secrets.wait_synced()
        self._maps.on_change(self._note)
        self._secrets.on_change(self._note)

    def _note(self, _change: Change[Any]) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def of(self, namespace: str) -> ConfigData:
        """Return what the namespace has, at the time of each look-up."""
        return ConfigData(partial(self._maps.get, namespace), partial(self._secrets.get, namespace))

    def next_change(self) -> asyncio.Event:
        """Return what the next change of any of them sets.

        Take it before a look: a change that comes between the look and the wait is not missed.
        """
        return self._moved
