"""Headers of answers, forms that a client refuses, and webhooks that redirect."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.api.status import NotAcceptable
from fairlead.embedded.http.answering.negotiate import OBJECT_FORMS, negotiate
from fairlead.embedded.http.answering.respond import json_answer
from fairlead.embedded.http.webhook_caller import HttpWebhookCaller
from fairlead.embedded.webhooks.registry import CallFailed


def test_a_warning_is_quoted_once() -> None:
    answer = json_answer(b"{}", warnings=['a "b" \\ c'])
    assert answer.headers["Warning"] == '299 - "a \\"b\\" \\\\ c"'


def test_a_form_of_quality_zero_is_refused() -> None:
    with pytest.raises(NotAcceptable):
        negotiate("application/json;q=0", OBJECT_FORMS)


async def test_a_webhook_that_redirects_has_not_answered() -> None:
    async def redirect(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, body=b"{}", headers={"Location": "/elsewhere"})

    runner = web.ServerRunner(web.Server(redirect))
    await runner.setup()
    try:
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        client = WebhookClientConfig(url=f"http://127.0.0.1:{runner.addresses[0][1]}/x")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(CallFailed, match="answered 302"):
                await HttpWebhookCaller(session).call(client, b"{}", timeout_seconds=5)
        await site.stop()
    finally:
        await runner.cleanup()
