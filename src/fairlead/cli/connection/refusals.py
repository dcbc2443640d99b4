"""The API's refusals in the terminal's words and codes."""

from __future__ import annotations

from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from fairlead.input.errors import CliError, Code, Problem

#: In the message of an API server (apiserver, admission/plugin/webhook/errors).
_WEBHOOK = "failed calling webhook"
_CODES: tuple[tuple[type[ApiError], Code], ...] = (
    (Unauthorized, Code.UNAUTHORIZED), (Forbidden, Code.FORBIDDEN),
    (AlreadyExists, Code.NAME_IN_USE), (Conflict, Code.CONFLICT), (Unavailable, Code.UNREACHABLE),
)  # fmt: skip


def from_api(error: ApiError) -> CliError:
    """Return the error to show for an answer that no command expected."""
    details = error.status.details
    if isinstance(error, Invalid) and details is not None and details.causes:
        return CliError(
            [Problem(Code.REFUSED, cause.message or cause.reason, field=cause.field)
             for cause in details.causes]
        )  # fmt: skip
    if isinstance(error, NotFound) and details is None and "page not found" in error.message:
        return CliError(
            Problem(Code.NO_CLUSTER, "Fairlead is not installed on this cluster",
                    help=("fairlead install",))
        )  # fmt: skip
    message = error.message
    if isinstance(error, Unauthorized):
        message = "the cluster does not accept these credentials"
    return CliError(Problem(_code(error), message, help=_help(error)))


def _code(error: ApiError) -> Code:
    if isinstance(error, NotFound):
        details = error.status.details
        return Code.NO_SUCH_JOB if details and details.kind == "jobs" else Code.BAD_ANSWER
    if isinstance(error, InternalError):
        return Code.UNREACHABLE if _WEBHOOK in error.message else Code.BAD_ANSWER
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.REFUSED)


def _help(error: ApiError) -> tuple[str, ...]:
    if isinstance(error, Unauthorized):
        return ("fairlead status prints the kubeconfig of the cluster on this machine",)
    if isinstance(error, InternalError) and _WEBHOOK in error.message:
        return ("the API server does not reach an admission webhook: see whether its pods run, for "
                f"Fairlead's own: kubectl -n {OWN_NAMESPACE} get pods",)  # fmt: skip
    if isinstance(error, (Conflict, Unavailable)):
        return ("run the command again",)
    return ()
