"""The senders of notices of one process, from the settings."""

from __future__ import annotations

from pathlib import Path

from fairlead.app.notices_settings import NoticesSettings
from fairlead.decide.notices import parse_networks
from fairlead.notices import CommandNotices, HttpNotices, MailNotices, Senders
from fairlead.runtime.clock import Clock


def notice_senders(settings: NoticesSettings, clock: Clock, *, runs_commands: bool) -> Senders:
    """Return the sender of a cluster; `runs_commands` where it has one owner."""
    server = settings.mail_server()
    urls = HttpNotices(
        parse_networks(settings.allowed_networks), clock=clock,
        authority=Path(settings.credentials_directory) / "ca.crt",
    )  # fmt: skip
    return Senders(
        urls, mail=None if server is None else MailNotices(server, clock=clock),
        commands=CommandNotices() if runs_commands else None,
    )  # fmt: skip
