"""The senders of notices and of audit records of one process, from the settings."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairlead.api.jobs.job import Job
from fairlead.app.configuration.audit_settings import AuditSettings
from fairlead.app.configuration.notices_settings import NoticesSettings
from fairlead.decide.notices import parse_networks
from fairlead.notices import CommandNotices, HttpNotices, MailNotices, Senders, audit_target
from fairlead.runtime.clock import Clock
from fairlead.runtime.kept.audit_export import AuditTarget
from fairlead.runtime.watching.mirror import Change, Mirror


def notice_senders(settings: NoticesSettings, clock: Clock, *, runs_commands: bool) -> Senders:
    """Return the sender of a cluster; `runs_commands` where it has one owner."""
    server, credentials = settings.mail_server(), Path(settings.credentials_directory)
    urls = HttpNotices(
        parse_networks(settings.allowed_networks), clock=clock,
        authority=credentials / "ca.crt",
    )  # fmt: skip
    return Senders(
        urls, mail=None if server is None else MailNotices(server, clock=clock),
        commands=CommandNotices() if runs_commands else None, tickets=credentials,
    )  # fmt: skip


async def notices_asked_for(jobs: Mirror[Job]) -> None:
    """Wait for the first job that asks for notices."""
    asks = asyncio.Event()

    def look(change: Change[Job]) -> None:
        if change.new is not None and change.new.spec.notify:
            asks.set()

    remove = jobs.on_change(look)
    try:
        await asks.wait()
    finally:
        remove()


def audit_targets(audit: AuditSettings, notices: NoticesSettings) -> list[AuditTarget]:
    """Return where audit records are sent, and what sends them."""
    credentials = Path(notices.credentials_directory)
    return [audit_target(each, credentials, asyncio.to_thread) for each in audit.addresses()]
