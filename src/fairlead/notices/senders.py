"""The ways of a cluster to send notices, as one sender."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fairlead.decide.notices import Delivery, Post, TryOutcome, TryReason, post_of
from fairlead.notices.command_notices import CommandNotices
from fairlead.notices.http_notices import HttpNotices
from fairlead.notices.mail_notices import MailNotices


class Senders:
    """Sends each delivery by the way of its target."""

    def __init__(
        self,
        urls: HttpNotices,
        *,
        mail: MailNotices | None = None,
        commands: CommandNotices | None = None,
        tickets: Path | None = None,
    ) -> None:
        """Without `mail` no mail is sent; without `commands` none is run.

        `tickets`: the directory that has the files tickets-url and tickets-key, where it has them.
        """
        self._tickets = tickets
        self._urls = urls
        self._mail = mail
        self._commands = commands

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Send it, once, and return how that ended."""
        if delivery.url:
            return await self._urls.post(post_of(delivery))
        if delivery.target.mail and self._mail is not None:
            return await self._mail.send(delivery)
        if delivery.target.command and self._commands is not None:
            return await self._commands.send(delivery)
        return TryOutcome(TryReason.NOT_OFFERED)

    async def post_ticket(self, post: Post) -> TryOutcome:
        """Post a ticket, once, signed with the key of the file; without a URL to that of a file.

        Files are read for each try, so a renewed Secret counts at once.
        """
        url = post.url or self._text("tickets-url")
        if not url:
            return TryOutcome(TryReason.SECRET_MISSING)
        return await self._urls.post(replace(post, url=url, signing_key=self._text("tickets-key")))

    def _text(self, name: str) -> str:
        """Return the text of a file; "" where it is not there, or no text."""
        path = None if self._tickets is None else self._tickets / name
        try:
            return "" if path is None else path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""
