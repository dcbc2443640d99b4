"""The options of the notices controller, and the mail server of the administrator."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fairlead.api.jobs.job_defaults import NoticeTerms


class SmtpTls(Enum):
    """How the connection to the mail server is protected."""

    START_TLS = "StartTls"
    TLS = "Tls"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class MailServer:
    """The server, and who notices are from. `directory` has the files ca.crt and login."""

    host: str
    port: int
    tls: SmtpTls
    sender: str
    directory: str


@dataclass(frozen=True, slots=True)
class NoticesPolicy:
    """Bounds of tries, and of sending; `terms` are what admission asks as well."""

    terms: NoticeTerms = field(default_factory=NoticeTerms)
    #: Of one notice; with the pauses about an hour.
    tries_max: int = 8
    #: A try ends within this.
    try_seconds_max: float = 60.0
    pause_seconds_min: float = 30.0
    pause_seconds_max: float = 1_920.0
    #: Tries that begin within a minute, of one namespace and of all.
    namespace_per_minute: int = 60
    per_minute: int = 600
    #: Tries at a time.
    namespace_sending_max: int = 4
    sending_max: int = 64

    def pause_seconds(self, tries: int) -> float:
        """Return how long to wait after so many tries have failed."""
        return min(self.pause_seconds_min * 2.0 ** (tries - 1), self.pause_seconds_max)
