"""A way from a real API server to a webhook in this process, by the Service that was installed.

Nobody routes Services here. But with `--enable-aggregator-routing` kube-apiserver looks up itself
what is behind a Service, so an EndpointSlice with an address of this machine (loopback is not
allowed in one) is enough, and the manifests are tried as they are.
"""

from __future__ import annotations

import socket

import msgspec
import pytest
from tests.kubernetes.operating import job_body, until

from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError
from fairlead.kube.client import HttpClient
from fairlead.webhook.configuration import SERVICE

FLAG = "--enable-aggregator-routing=true"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/fairlead-system/endpointslices"


def own_address() -> str:
    """An address of this machine that is not loopback; skip the test where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has loopback only: no Service can lead here")
        return str(probe.getsockname()[0])


async def lead_to(client: HttpClient, port: int) -> None:
    """Let the Service lead to a port of this machine; return once jobs are let in through it."""
    await forget(client)
    await add(client, port)

    async def lets_in() -> bool:
        try:
            await client.create(JOBS, job_body("probe", 1), namespace="default", dry_run=True)
        except ApiError:
            return False
        return True

    await until(lets_in)


async def add(client: HttpClient, port: int) -> None:
    """Let the Service lead to this port, too."""
    labels = {"kubernetes.io/service-name": SERVICE}
    body = {
        "metadata": {"name": f"{SERVICE}-{port}", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await client.request("POST", SLICES, body=msgspec.json.encode(body))


async def remove(client: HttpClient, port: int) -> None:
    """Let the Service lead to this port no more."""
    await client.request("DELETE", f"{SLICES}/{SERVICE}-{port}")


async def forget(client: HttpClient) -> None:
    """Let the Service lead nowhere."""
    await client.request("DELETE", SLICES)
