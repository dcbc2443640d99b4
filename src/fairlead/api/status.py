"""The API's error object and the exception tree that carries it, the same on both sides of the
wire.

    ApiError                      any answer that is not a success; `.status` is the whole Status
      BadRequest 400 · Unauthorized 401 · Forbidden 403 · NotFound 404 · MethodNotAllowed 405
      NotAcceptable 406 · AlreadyExists 409 · Conflict 409 · Expired 410 · TooLarge 413
      UnsupportedMediaType 415 · Invalid 422 · TooManyRequests 429 · InternalError 500
      Unavailable 503 · Timeout 504

The embedded server raises these; the clients raise the same ones from what came over the wire, so
a controller cannot tell an in-process client from an HTTP one. Whether a retry can help is a
property of the type (`retryable`). A connection that broke is `Unavailable`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from fairlead.api.meta import Wire


class StatusCause(Wire, frozen=True):
    """One cause: `field` is a path such as `spec.roles[0].count`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Wire, frozen=True):
    """What the error is about."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class StatusMeta(Wire, frozen=True):
    """Metadata of a Status; `continue_` carries the fresh token of an expired list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Status(Wire, frozen=True):
    """The Kubernetes `Status` object (kind and apiVersion are added on the wire)."""

    metadata: StatusMeta = StatusMeta()
    status: str = "Failure"
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0

    def encode(self) -> bytes:
        """Return the JSON of this status with `kind` and `apiVersion`."""
        body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
        body["status"] = self.status  # named even where it is the default
        body.update(msgspec.to_builtins(self))
        return msgspec.json.encode(body)


class ApiError(Exception):
    """An API answer that is not a success. Raise the subclass, read `.status`."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    retryable: ClassVar[bool] = False
    #: What goes into `Warning:` headers beside the error.
    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        message: str,
        *,
        details: StatusDetails | None = None,
        metadata: StatusMeta | None = None,
        reason: str | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = Status(
            message=message,
            reason=self.reason if reason is None else reason,
            code=self.code if code is None else code,
            details=details,
            metadata=metadata or StatusMeta(),
        )

    def __init_subclass__(cls, *, code: int = 0, reason: str = "", retryable: bool = False) -> None:
        """State the code of a kind of error, its reason where that is not its name, and whether a
        retry can help; without a code, all are inherited.
        """
        super().__init_subclass__()
        if code:
            cls.code, cls.reason, cls.retryable = code, reason or cls.__name__, retryable

    @property
    def message(self) -> str:
        """The message for people."""
        return self.status.message

    @property
    def retry_after_seconds(self) -> int:
        """What the server asked to wait before a retry; 0 when it did not say."""
        return self.status.details.retry_after_seconds if self.status.details else 0


class BadRequest(ApiError, code=400):
    """The request itself is malformed; change it."""


class Unauthorized(ApiError, code=401):
    """No credentials, or wrong ones."""


class Forbidden(ApiError, code=403):
    """Refused by policy or by a namespace that is going away."""


class NotFound(ApiError, code=404):
    """No such object or path."""


class MethodNotAllowed(ApiError, code=405):
    """The resource does not support this verb."""


class NotAcceptable(ApiError, code=406):
    """The client accepts no media type that the server has."""


class AlreadyExists(ApiError, code=409):
    """The name is taken."""


class Conflict(ApiError, code=409):
    """A precondition (resourceVersion, uid) no longer holds; read again and decide again."""


class Expired(ApiError, code=410):
    """The resourceVersion or the continue token is too old; list again."""


class TooLarge(ApiError, code=413, reason="RequestEntityTooLarge"):
    """The request body is over the limit."""


class UnsupportedMediaType(ApiError, code=415):
    """The body's media type is not supported here; clients fall back to another."""


class Invalid(ApiError, code=422):
    """The object breaks rules; `.status.details.causes` names each field."""


class TooManyRequests(ApiError, code=429, retryable=True):
    """Throttled, or a disruption budget blocks; wait `retry_after_seconds`."""


class InternalError(ApiError, code=500, retryable=True):
    """The server failed."""


class Unavailable(ApiError, code=503, reason="ServiceUnavailable", retryable=True):
    """No answer: connection refused or broken, or the server is stopping."""


class Timeout(ApiError, code=504, retryable=True):
    """The server gave up waiting."""


_BY_REASON: dict[str, type[ApiError]] = {
    cls.reason: cls
    for cls in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable,
        AlreadyExists, Conflict, Expired, TooLarge, UnsupportedMediaType, Invalid,
        TooManyRequests, InternalError, Unavailable, Timeout,
    )
}  # fmt: skip
_BY_REASON["Gone"] = Expired
_BY_CODE: dict[int, type[ApiError]] = {cls.code: cls for cls in _BY_REASON.values()}
_BY_CODE[409] = Conflict
#: What etcd and its client say of a request of more than 1.5 and 2 MiB.
_TOO_LARGE = ("request is too large", "trying to send message larger than max")


def error_from_status(status: Status) -> ApiError:
    """Return the exception of the most specific type for a Status that came over the wire.

    A server's error that is not listed (502 of a proxy, say) is an `InternalError`: worth a retry.
    So is not that etcd takes no object of this size, which API servers pass on as 500.
    """
    fallback = InternalError if status.code >= 500 else ApiError
    cls = _BY_REASON.get(status.reason) or _BY_CODE.get(status.code) or fallback
    if status.code >= 500 and any(words in status.message for words in _TOO_LARGE):
        cls = TooLarge
    return cls(
        status.message, details=status.details, metadata=status.metadata,
        reason=status.reason, code=status.code or cls.code,
    )  # fmt: skip
