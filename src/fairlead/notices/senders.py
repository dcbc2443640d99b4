"""The ways of a cluster to send notices, as one sender."""

from __future__ import annotations

from fairlead.decide.notices import Delivery, TryOutcome, TryReason
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
    ) -> None:
        """Without `mail` no mail is sent; without `commands` none is run."""
        self._urls = urls
        self._mail = mail
        self._commands = commands

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Send it, once, and return how that ended."""
        if delivery.url:
            return await self._urls.send(delivery)
        if delivery.target.mail and self._mail is not None:
            return await self._mail.send(delivery)
        if delivery.target.command and self._commands is not None:
            return await self._commands.send(delivery)
        return TryOutcome(TryReason.NOT_OFFERED)
