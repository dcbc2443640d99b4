"""Calls of Azure's compute API through Microsoft's own SDK, and what its errors mean.

The SDK is imported in a thread when a pool of Azure is first asked. It neither retries nor polls
here: the controller asks again. An operation is polled by its address, one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from fairlead.cloud.calls import Runner, Throttle, Throttled, retry_after_seconds
from fairlead.cloud.errors import NotThere, Stated, Words
from fairlead.cloud.provider import CloudError, RefusedByProvider

_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_MESSAGE_MAX = 300
#: A call that would wait for longer than this is not made; the caller asks again.
WAIT_SECONDS_MAX = 1.0
#: Half of what Azure allows a subscription in a region: lists, the scarcest, 360 a minute; and half
#: of what Resource Manager holds in its bucket of reads, 250.
BURST_MAX, PER_SECOND = 125.0, 3.0
_NO_CREDENTIALS = (
    "there are no credentials: give the pod a workload identity or a managed identity, or run "
    "`az login`"
)

WORDS = Words(
    "Azure",
    throttled=("THROTTLED", "TOOMANY"),
    no_capacity=(
        "ALLOCATIONFAILED", "OVERCONSTRAINED", "SKUNOTAVAILABLE", "QUOTA", "INSUFFICIENT",
        "CAPACITYRESERVATION", "ALLOCATIONTIMEOUT", "SUBNETISFULL", "IPADDRESSESEXHAUSTED",
    ),
    later=("PREEMPTED", "CONFLICT", "ANOTHEROPERATION", "RETRYABLE", "INPROGRESS", "INTERNAL"),
    refused=(
        "AUTHORIZATION", "FORBIDDEN", "INVALID", "NOTFOUND", "BADREQUEST", "DISALLOWED",
        "NOTALLOWED", "LOCKED", "SUBSCRIPTION",
    ),
    # A quota is refused with the code OperationNotAllowed, like much else: only the text says so.
    vague="NOTALLOWED", no_capacity_in_text=("QUOTA",),
    later_in_text=("ANOTHER OPERATION", "IN PROGRESS"),
)  # fmt: skip


class Bucket(Enum):
    """What Azure counts apart for each scale set; lists of machines for the subscription only."""

    READ = "read"
    LIST = "list"
    UPDATE = "update"
    DELETE = "delete"
    OPERATION = "operation"
    REPORT = "report"


#: Half of what Azure's buckets hold, and of their refill a minute.
RATES = {
    Bucket.READ: (18.0, 6.0), Bucket.LIST: (540.0, 180.0), Bucket.UPDATE: (6.0, 2.0),
    Bucket.DELETE: (6.0, 2.0), Bucket.OPERATION: (22.0, 7.5),
    Bucket.REPORT: (6.0, 2.0),
}  # fmt: skip


class Changed(CloudError):
    """The scale set is not the one that the call was decided on."""


class Busy(CloudError):
    """The call was not made: it would have waited for its turn."""


@dataclass(frozen=True, slots=True)
class AzureOperation:
    """A long-running operation; its errors once it has failed."""

    is_done: bool
    errors: tuple[Stated, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A scale set by its names."""

    subscription: str
    resource_group: str
    scale_set: str


#: Returns the client of a subscription. Blocks; CloudError.
Connect = Callable[[str], Any]
#: Asks something of a client. Blocks.
Question = Callable[[Any], Any]


@dataclass(slots=True)
class _Subscription:
    throttle: Throttle = field(default_factory=lambda: Throttle("Azure", BURST_MAX, PER_SECOND))
    buckets: dict[tuple[Place, Bucket], Throttle] = field(
        default_factory=dict[tuple[Place, Bucket], Throttle]
    )


class Azure:
    """What the pools of one process share: clients and throttles, for each subscription."""

    def __init__(self, run: Runner = asyncio.to_thread, connect: Connect | None = None) -> None:
        self._run = run
        self._connect = connect or _Clients()
        self._subscriptions: dict[str, _Subscription] = {}

    async def call(self, place: Place, bucket: Bucket, question: Question) -> Any:
        """Ask for something about a scale set. OutOfCapacity, RefusedByProvider, CloudError.

        Busy: it was not asked, since that would exceed half of the rate that Azure allows.
        """
        shared = self._subscriptions.setdefault(place.subscription, _Subscription())
        own = shared.buckets.get((place, bucket))
        if own is None:
            burst_max, per_minute = RATES[bucket]
            own = Throttle("Azure", burst_max, per_minute / 60.0)
            shared.buckets[place, bucket] = own
        seconds = own.wait_seconds()
        if seconds > WAIT_SECONDS_MAX:
            what = f"{bucket.value} calls of scale set {place.scale_set!r}"
            raise Busy(f"Azure: {what} pause for {seconds:.0f} s, to stay below Azure's rate limit")
        await own.take()
        asked = partial(_called, self._connect, place.subscription, question)
        return await shared.throttle.call(self._run, asked)


class _Clients:
    """Clients with the default credentials of the process."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._credential: Any = None

    def __call__(self, subscription: str) -> Any:
        found = self._made.get(subscription)
        if found is not None:
            return found
        try:
            sdk, identity = import_module("azure.mgmt.compute"), import_module("azure.identity")
            policies = import_module("azure.core.pipeline.policies")
        except ImportError as error:
            text = "azure-mgmt-compute or azure-identity is missing: pip install 'fairlead[azure]'"
            raise RefusedByProvider(text) from error
        if self._credential is None:
            self._credential = identity.DefaultAzureCredential()
        client = sdk.ComputeManagementClient(
            self._credential, subscription, retry_policy=policies.RetryPolicy.no_retries(),
            connection_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS,
        )  # fmt: skip
        return self._made.setdefault(subscription, client)


def _called(connect: Connect, subscription: str, question: Question) -> Any:
    client = connect(subscription)
    core = import_module("azure.core.exceptions")
    try:
        return question(client)
    except core.HttpResponseError as error:
        if error.response is None:  # of the credentials, not of the API
            raise RefusedByProvider(f"Azure: {_NO_CREDENTIALS} ({_first_line(error)})") from error
        raise _answer_of(error) from error
    except core.AzureError as error:
        raise CloudError(f"Azure: {type(error).__name__}: {error}"[:_MESSAGE_MAX]) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_MESSAGE_MAX]


def _answer_of(error: Any) -> CloudError:
    """Return what an error answer of the API means."""
    http = int(error.status_code or 0)
    model = error.error
    stated = [Stated(f"HTTP {http}", str(error.reason or ""))]
    if model is not None and model.code:
        details = [each for each in model.details or () if each.code]
        stated = [Stated(str(e.code), str(e.message or "")) for e in (model, *details)]
    if http == 404:
        return NotThere(WORDS.text(stated[0]))
    if http == 412:
        return Changed(WORDS.text(stated[0]))
    if http == 429:
        seconds = retry_after_seconds(error.response.headers.get("Retry-After"))
        return Throttled(WORDS.text(stated[0]), seconds)
    return WORDS.error_of_answer(stated, http)


def begun(poller: Any) -> str:
    """Return the address of an operation that a call has begun; "" without one.

    Only its path: the credentials go to no host that an answer names.
    """
    headers: Mapping[str, str] = poller.result()
    split = urlsplit(headers.get("Azure-AsyncOperation") or "")
    return f"{split.path}?{split.query}" if split.path else ""


def headers_of(response: Any, *_: Any) -> Any:
    """Return the headers of a first answer: what `cls` of an operation's call is given."""
    return response.http_response.headers


def sent(client: Any, method: str, address: str, body: Any = None) -> Any:
    """Send a request that the SDK has no method for, and return the answer. Blocks."""
    request = import_module("azure.core.rest").HttpRequest(method, address, json=body)
    response = client.send_request(request)
    response.raise_for_status()
    return response


def operation_at(client: Any, address: str) -> AzureOperation:
    """Return the state of an operation. Blocks."""
    response = sent(client, "GET", address)
    try:
        answer: Any = response.json()
    except ValueError as error:
        raise CloudError("Azure: the state of an operation is no JSON") from error
    state = str(answer.get("status", "")) if isinstance(answer, dict) else ""
    if state not in ("Succeeded", "Failed", "Canceled"):
        return AzureOperation(is_done=False)
    if state == "Succeeded":
        return AzureOperation(is_done=True)
    return AzureOperation(is_done=True, errors=_errors_of(answer.get("error"), state))


def _errors_of(error: Any, state: str) -> tuple[Stated, ...]:
    found = error if isinstance(error, dict) else {}
    parts = [found, *(each for each in found.get("details") or () if isinstance(each, dict))]
    stated = (Stated(str(e.get("code") or ""), str(e.get("message") or "")) for e in parts)
    return tuple(each for each in stated if each.code) or (Stated(state, "no reason was given"),)
