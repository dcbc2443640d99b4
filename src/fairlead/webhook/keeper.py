"""Keeps the webhook's certificate: reads it, rotates it, and announces its authorities.

Every replica runs one, leader or not, since every replica serves. Each looks at the Secret and at
both configurations now and then (and, where it converts their objects, at the definitions), takes
the next step of a rotation when there is one (`certificates.next_step`) by compare-and-swap, serves
what the Secret holds, and writes its bundle into configurations that have another one. Who loses
the race looks again: the winner has done the work. Nothing is kept in memory that could not be
found out again.

Where cert-manager keeps the certificate (the configurations have its annotation), only the Secret
is read. Without configurations no API server asks: what is there is served, and nothing is made.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.api.kubernetes.core import Secret
from fairlead.api.kubernetes.webhooks import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
    WebhookClientConfig,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import SECRETS, Resource
from fairlead.api.status import AlreadyExists, ApiError, Conflict, NotFound
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.client import Client, PatchType
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.webhook.certificates import (
    CRT,
    KEY,
    TYPE,
    BadCertificate,
    Material,
    Observed,
    Pair,
    Step,
    Times,
    from_secret,
    next_step,
    take_step,
    to_secret,
)
from fairlead.webhook.configuration import INJECT, MUTATING, NAME, VALIDATING
from fairlead.webhook.definitions import DEFINITIONS, ConvertedDefinition

Configuration = MutatingWebhookConfiguration | ValidatingWebhookConfiguration | ConvertedDefinition
Serve = Callable[[Pair], None]
_RESOURCES: tuple[Resource[Any], ...] = (MUTATING, VALIDATING)


@dataclass(frozen=True, slots=True)
class CertificateKeeperOptions:
    """Which Secret, for which hosts, and how often it is looked at.

    A look must come several times within `times.overlap_seconds`.
    """

    namespace: str = OWN_NAMESPACE
    secret: str = "fairlead-webhook"  # noqa: S105 # a name
    #: Names of the definitions whose objects this webhook converts.
    definitions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = (f"fairlead-webhook.{OWN_NAMESPACE}.svc",)
    labels: dict[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/part-of": "fairlead"}
    )
    times: Times = field(default_factory=Times)
    look_seconds: float = 60.0
    #: After a step, and until there is something to serve.
    soon_seconds: float = 1.0
    retries: BackoffOptions = field(default_factory=lambda: BackoffOptions(1.0, 30.0))


@dataclass(frozen=True, slots=True)
class _Standing:
    """A configuration, and where it is."""

    resource: Resource[Any]
    found: Configuration

    @property
    def callers(self) -> Sequence[WebhookClientConfig]:
        """How it is called, for each of its webhooks."""
        if not isinstance(self.found, ConvertedDefinition):
            return [each.client_config for each in self.found.webhooks]
        webhook = self.found.spec.conversion.webhook
        return [] if webhook is None else [webhook.client_config]

    def has_other(self, bundle: str) -> bool:
        """True when it trusts other authorities."""
        return any(each.ca_bundle != bundle for each in self.callers)

    def patch(self, bundle: str) -> tuple[dict[str, Any], PatchType]:
        """Return what makes it trust these."""
        metadata, client = _precondition(self.found.metadata), {"caBundle": bundle}
        if isinstance(self.found, ConvertedDefinition):
            conversion = {"webhook": {"clientConfig": client}}
            return {"metadata": metadata, "spec": {"conversion": conversion}}, PatchType.MERGE
        entries = [{"name": each.name, "clientConfig": client} for each in self.found.webhooks]
        return {"metadata": metadata, "webhooks": entries}, PatchType.STRATEGIC


class CertificateKeeper:
    """One replica's keeper. `serve` is given every pair that is to be served."""

    def __init__(
        self,
        client: Client,
        options: CertificateKeeperOptions,
        serve: Serve,
        *,
        clock: Clock,
        rng: random.Random,
        log: Logger = SILENT,
    ) -> None:
        self.steps_count = 0
        #: False only after a look that found no API server configured to ask.
        self.is_asked = True
        self._client = client
        self._options = options
        self._serve = serve
        self._clock = clock
        self._backoff = Backoff(rng, options.retries)
        self._log = log
        self._served: Pair | None = None
        self._seen: tuple[Material | None, float] | None = None
        self._announced: tuple[str, float] | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Look until cancelled. An API that does not answer is asked again; we serve on."""
        while True:
            try:
                wait = await self.look()
                self._backoff.reset()
            except ApiError as error:
                self._log.warning("Webhook certificate not looked after", error=str(error))
                wait = self._backoff.next()
            await asyncio.sleep(wait)

    async def look(self) -> float:
        """Look once and do what is due; return the seconds until the next look. ApiError."""
        standing = await self._standing()
        secret = await self._secret()
        self.is_asked = bool(standing)
        if any(INJECT in each.found.metadata.annotations for each in standing):
            return self._take_given(secret)
        if not standing and secret is None:
            return self._options.look_seconds
        material, now = self._read(secret), self._clock.now()
        observed = self._observe(material, standing, now)
        options = self._options
        step = next_step(material, observed, options.hosts, now=now, times=options.times)
        if step is not Step.KEEP:
            after = take_step(step, material, options.hosts, now=now, times=options.times)
            if not await self._write(after, secret):
                return options.soon_seconds  # another replica was faster: read what it wrote
            self.steps_count += 1
            self._log.info("Webhook certificate changed", step=step.value)
            material = after
            self._observe(material, standing, now)
        assert material is not None, "only MAKE comes from nothing"
        self._use(material.serving)
        await self._announce(standing, material.bundle)
        return options.look_seconds if step is Step.KEEP else options.soon_seconds

    # Reading

    async def _standing(self) -> list[_Standing]:
        standing: list[_Standing] = []
        names = [(resource, NAME) for resource in _RESOURCES]
        names += [(DEFINITIONS, name) for name in self._options.definitions]
        for resource, name in names:
            try:
                each = _Standing(resource, await self._client.get(resource, name))
            except NotFound:
                continue
            if each.callers:
                standing.append(each)
        return standing

    async def _secret(self) -> Secret | None:
        options = self._options
        try:
            return await self._client.get(SECRETS, options.secret, namespace=options.namespace)
        except NotFound:
            return None

    def _read(self, secret: Secret | None) -> Material | None:
        if secret is None:
            return None
        try:
            return from_secret(secret.data)
        except BadCertificate as error:
            self._complain(str(error))
            return None

    def _take_given(self, secret: Secret | None) -> float:
        """Serve what another program keeps; log what cannot be used, and look again."""
        material = self._read(secret)
        try:
            if secret is None:
                self._complain("cert-manager has not made it yet")
            elif material is not None:
                self._use(material.serving)
        except BadCertificate as error:
            self._complain(str(error))
        options = self._options
        return options.soon_seconds if self._served is None else options.look_seconds

    def _observe(
        self, material: Material | None, standing: Sequence[_Standing], now: float
    ) -> Observed:
        """Note what is so for the first time, and return since when it has been."""
        if self._seen is None or self._seen[0] != material:
            self._seen = (material, now)
        bundle = "" if material is None else _encoded(material.bundle)
        if any(each.has_other(bundle) for each in standing):
            self._announced = None
        elif self._announced is None or self._announced[0] != bundle:
            self._announced = (bundle, now)
        since = self._announced[1] if self._announced is not None else None
        return Observed(self._seen[1], since)

    def _use(self, pair: Pair) -> None:
        if pair != self._served:
            self._serve(pair)
            self._served = pair
        self._trouble = ""

    def _complain(self, trouble: str) -> None:
        """Say once what is wrong with the Secret."""
        if trouble != self._trouble:
            self._trouble = trouble
            options = self._options
            name = f"{options.namespace}/{options.secret}"
            self._log.error("Webhook certificate cannot be used", secret=name, error=trouble)

    # Writing

    async def _write(self, material: Material, before: Secret | None) -> bool:
        """Store the material unless another replica has written meanwhile."""
        options = self._options
        data = to_secret(material)
        try:
            if before is None:
                made = {name: text for name, text in data.items() if text is not None}
                metadata = {"name": options.secret, "labels": options.labels}
                body = {"metadata": metadata, "type": TYPE, "data": made}
                await self._client.create(SECRETS, body, namespace=options.namespace)
            else:
                patch = {"metadata": _precondition(before.metadata), "data": data}
                await self._client.patch(
                    SECRETS, options.secret, patch, namespace=options.namespace
                )
        except (AlreadyExists, Conflict, NotFound):
            return False
        return True

    async def _announce(self, standing: Sequence[_Standing], bundle: bytes) -> None:
        """Write the bundle into configurations that have another one."""
        text = _encoded(bundle)
        for each in standing:
            if not each.has_other(text):
                continue
            patch, patch_type = each.patch(text)
            name = each.found.metadata.name
            try:
                await self._client.patch(each.resource, name, patch, patch_type=patch_type)
            except (Conflict, NotFound):
                continue  # the next look sees what became of it
            self._log.info("Webhook authorities announced", kind=each.resource.kind, name=name)


def _precondition(metadata: ObjectMeta) -> dict[str, str]:
    return {"uid": metadata.uid, "resourceVersion": metadata.resource_version}


def _encoded(bundle: bytes) -> str:
    return base64.b64encode(bundle).decode()


FILE_BYTES_MAX = 1 << 20
LOOK_SECONDS = 10.0


class CertificateFiles:
    """Looks at `tls.crt` and `tls.key` of a directory and hands every new pair on.

    A mounted Secret changes both files at once, by renaming a directory; files that are copied one
    after the other do not fit together for a moment. So a pair that cannot be used is said and
    looked at again, while the last good one is served.
    """

    def __init__(
        self, directory: Path, serve: Callable[[Pair], None], *, log: Logger = SILENT
    ) -> None:
        self._directory = directory
        self._serve = serve
        self._log = log
        self._served: Pair | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look once."""
        try:
            pair = Pair(self._read(CRT), self._read(KEY))
            if pair != self._served:
                self._serve(pair)
                self._served = pair
        except (OSError, BadCertificate) as error:
            if str(error) != self._trouble:
                directory = str(self._directory)
                self._log.error(
                    "Webhook certificate cannot be used", directory=directory, error=str(error)
                )
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _read(self, name: str) -> bytes:
        with (self._directory / name).open("rb") as file:
            return file.read(FILE_BYTES_MAX)
