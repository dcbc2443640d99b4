"""Calls admission webhooks over HTTPS.

A webhook's certificate is verified against its own `caBundle`, or the system's authorities where it
has none. Redirects are not followed and answers are bounded. A webhook behind a service reference
cannot be reached: the embedded cluster has no service network, which the error says.
"""

from __future__ import annotations

import base64
import ssl
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.embedded.http.only_created import GROUPS, USER
from fairlead.embedded.http.request import read_at_most
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.webhooks.registry import CallFailed
from fairlead.embedded.webhooks.review import ReviewUser

ANSWER_BYTES_MAX = 3 * 1024 * 1024  # client-go: what a webhook may answer
CONTEXTS_CACHED_MAX = 64
CONNECTIONS_MAX = 256
EXCERPT_CHARACTERS_MAX = 200


class HttpWebhookCaller:
    """Implements `fairlead.embedded.webhooks.registry.WebhookCaller`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    async def call(
        self, client: WebhookClientConfig, body: bytes, *, timeout_seconds: int
    ) -> bytes:
        """Return the body of the answer; CallFailed when there is none within the time."""
        if client.url is None:
            service = client.service
            name = "" if service is None else f"{service.namespace}/{service.name}"
            raise CallFailed(
                f"service {name} cannot be called: the embedded cluster has no service network; "
                "give clientConfig.url"
            )
        url = f"{client.url}?timeout={timeout_seconds}s"
        try:
            return await self._post(url, body, self._context(client.ca_bundle), timeout_seconds)
        except TimeoutError:
            why = f"no answer within {timeout_seconds} s: context deadline exceeded"
        except aiohttp.ClientConnectorCertificateError as error:
            why = f"tls: failed to verify certificate: {error.certificate_error}"
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            why = f"dial tcp {error.host}:{error.port}: {reason}"
        except ssl.SSLError as error:
            why = f"tls: {error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        raise CallFailed(f'Post "{url}": {why}')

    async def _post(
        self, url: str, body: bytes, context: ssl.SSLContext, timeout_seconds: int
    ) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        async with self._session.post(
            url, data=body, headers=headers, ssl=context, allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
        ) as response:  # fmt: skip
            answer = await read_at_most(response.content, ANSWER_BYTES_MAX)
            if answer is None:
                raise CallFailed(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
            if not 200 <= response.status < 300:
                text = answer[:EXCERPT_CHARACTERS_MAX].decode("utf-8", "replace")
                raise CallFailed(f'Post "{url}": the webhook answered {response.status}: {text}')
            return answer

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            pem = base64.b64decode(bundle).decode("ascii") if bundle else None
            context = ssl.create_default_context(cadata=pem)
            self._contexts[bundle] = context
            if len(self._contexts) > CONTEXTS_CACHED_MAX:
                self._contexts.popitem(last=False)
        return context


@asynccontextmanager
async def calling_webhooks(service: ApiService) -> AsyncGenerator[None]:
    """Let the service call webhooks over HTTPS until the block is left."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
        service.webhooks.attach(HttpWebhookCaller(session), ReviewUser(USER, GROUPS))
        try:
            yield
        finally:
            service.webhooks.detach()
