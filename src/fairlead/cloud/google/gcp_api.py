"""Calls of Compute Engine through Google's own SDK, and what its errors mean.

The SDK is imported in a thread when a pool of GCP is first asked: it takes a second or two. It is
loaded by name, since its types are 140,000 lines that every type check would read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any

from fairlead.cloud.calls import Runner, Throttle, Throttled
from fairlead.cloud.errors import NotThere, Stated, Words
from fairlead.cloud.provider import CloudError, RefusedByProvider

#: Compute Engine allows 1,500 requests a minute, project and region; half of that.
BURST_MAX, PER_SECOND = 25.0, 12.0
_CALL_SECONDS_MAX = 60.0
_MESSAGE_MAX = 300
_SCOPES = ("https://www.googleapis.com/auth/compute",)
_NO_CREDENTIALS = (
    "there are no credentials: give the pod a service account (Workload Identity), or run "
    "`gcloud auth application-default login`"
)

WORDS = Words(
    "GCP",
    throttled=("RATELIMIT", "RATE_LIMIT", "CONCURRENT_OPERATIONS", "OPERATION_RATE"),
    no_capacity=(
        "POOL_EXHAUSTED", "STOCKOUT", "QUOTA", "IP_SPACE_EXHAUSTED", "INSUFFICIENT",
        "UNSUPPORTED_OPERATION",  # so it answers when a spot machine is preempted at its start
    ),
    later=("NOT_READY", "NOTREADY", "IN_USE", "INUSE"),
    refused=(
        "PERMISSION", "FORBIDDEN", "INVALID", "NOT_FOUND", "NOTFOUND", "CONDITION_NOT_MET",
        "REQUIRED",
    ),
)  # fmt: skip


class GcpServices(Enum):
    """The services of Compute Engine that are called: names of their clients."""

    GROUPS = "InstanceGroupManagersClient"
    RESIZE_REQUESTS = "InstanceGroupManagerResizeRequestsClient"
    OPERATIONS = "ZoneOperationsClient"
    INSTANCES = "InstancesClient"


class AlreadyThere(CloudError):
    """What the call would make exists already."""


#: Returns the client of a service. Blocks; CloudError.
Connect = Callable[[GcpServices], Any]


class Gcp:
    """What the pools of one process share: clients, and one throttle for each project."""

    def __init__(self, run: Runner = asyncio.to_thread, connect: Connect | None = None) -> None:
        self._run = run
        self._connect = connect or _Clients()
        self._throttles: dict[str, Throttle] = {}

    async def call(self, service: GcpServices, method: str, project: str, **fields: Any) -> Any:
        """Call a method of a service. OutOfCapacity, RefusedByProvider, CloudError."""
        throttle = self._throttles.get(project)
        if throttle is None:
            throttle = self._throttles[project] = Throttle("GCP", BURST_MAX, PER_SECOND)
        request = {"project": project, **fields}
        return await throttle.call(
            self._run, partial(_called, self._connect, service, method, request)
        )


class _Clients:
    """Clients with the application default credentials."""

    def __init__(self) -> None:
        self._made: dict[GcpServices, Any] = {}
        self._credentials: Any = None

    def __call__(self, service: GcpServices) -> Any:
        found = self._made.get(service)
        if found is not None:
            return found
        try:
            sdk, auth = import_module("google.cloud.compute_v1"), import_module("google.auth")
        except ImportError as error:
            text = "google-cloud-compute is missing: pip install 'fairlead[gcp]'"
            raise RefusedByProvider(text) from error
        if self._credentials is None:
            try:
                self._credentials, _ = auth.default(scopes=_SCOPES)
            except auth.exceptions.DefaultCredentialsError as error:
                raise RefusedByProvider(f"GCP: {_NO_CREDENTIALS} ({error})") from error
        client = getattr(sdk, service.value)(credentials=self._credentials)
        return self._made.setdefault(service, client)


def _called(connect: Connect, service: GcpServices, method: str, request: dict[str, Any]) -> Any:
    client = connect(service)
    api, auth = import_module("google.api_core.exceptions"), import_module("google.auth.exceptions")
    http = import_module("requests.exceptions")
    try:
        answer = getattr(client, method)(request=request, retry=None, timeout=_CALL_SECONDS_MAX)
        # A pager asks for further pages when it is read: one call is one page.
        return next(iter(answer.pages)) if hasattr(answer, "pages") else answer
    except api.GoogleAPICallError as error:
        raise _answer_of(error) from error
    except auth.RefreshError as error:
        text = f"GCP: the credentials are not accepted: {error}"[:_MESSAGE_MAX]
        raise (CloudError if error.retryable else RefusedByProvider)(text) from error
    except (auth.GoogleAuthError, http.RequestException) as error:
        raise CloudError(f"GCP: {type(error).__name__}: {error}"[:_MESSAGE_MAX]) from error


def _answer_of(error: Any) -> CloudError:
    """Return what an error answer of the API means."""
    http = int(error.code or 0)
    listed = [each for each in error.errors if isinstance(each, dict)]
    stated = [Stated(str(e.get("reason", "")), str(e.get("message", ""))) for e in listed]
    stated = stated or [Stated(f"HTTP {http}", str(error.message))]
    if http == 404:
        return NotThere(WORDS.text(stated[0]))
    if http == 409:
        return AlreadyThere(WORDS.text(stated[0]))
    if http == 429:
        return Throttled(WORDS.text(stated[0]))
    return WORDS.error_of_answer(stated, http)


def stated_errors(error: Any) -> list[Stated]:
    """Return the errors of an operation, an attempt or a resize request, as the SDK holds them."""
    return [Stated(each.code, each.message) for each in error.errors] if error else []
