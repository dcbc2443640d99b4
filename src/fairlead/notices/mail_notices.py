"""Sends notices by the mail server that the administrator names.

The standard library's client blocks, so it runs on threads of its own, few of them: a server that
hangs holds up mail alone. Addresses were checked against one pattern; the message is made by the
library's own classes, which refuse a header of two lines.
"""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from pathlib import Path

from fairlead.api.jobs.notify import MAIL_ADDRESS
from fairlead.decide.notices import (
    Delivery,
    MailServer,
    SmtpTls,
    TryOutcome,
    TryReason,
    headline,
    mail_text,
)
from fairlead.runtime.clock import Clock

#: Of one answer of the server.
ANSWER_SECONDS = 10.0
_THREADS = 4


class MailNotices:
    """Sends deliveries that have a mail address."""

    def __init__(self, server: MailServer, *, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="notices-mail")

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Hand it to the server, once."""
        if not MAIL_ADDRESS.fullmatch(delivery.target.mail):
            return TryOutcome(TryReason.REJECTED)
        message = self._message(delivery)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._deliver, message)

    def _message(self, delivery: Delivery) -> EmailMessage:
        letter, sender = delivery.letter, self._server.sender
        message = EmailMessage(policy=SMTP)
        message["From"] = sender
        message["To"] = delivery.target.mail
        message["Subject"] = headline(letter)
        message["Date"] = formatdate(self._clock.now())
        message["Message-ID"] = f"<{letter.id}@{sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: nothing answers it by itself
        message.set_content(mail_text(letter))
        return message

    def _deliver(self, message: EmailMessage) -> TryOutcome:
        try:
            with self._connected() as client:
                client.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            code = next((answer[0] for answer in error.recipients.values()), 0)
            return _refused(code)
        except smtplib.SMTPAuthenticationError as error:
            return TryOutcome(TryReason.BUSY, error.smtp_code)  # for the administrator to mend
        except smtplib.SMTPResponseException as error:
            return _refused(error.smtp_code)
        except (ssl.SSLError, smtplib.SMTPNotSupportedError):
            return TryOutcome(TryReason.TLS_FAILED)
        except TimeoutError:
            return TryOutcome(TryReason.TIMEOUT)
        except (OSError, smtplib.SMTPException, ValueError):
            return TryOutcome(TryReason.UNREACHABLE)
        return TryOutcome(TryReason.DELIVERED, 250)

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        context = ssl.create_default_context()
        directory = Path(server.directory)
        authority = directory / "ca.crt"
        if authority.exists():
            context.load_verify_locations(authority)
        if server.tls is SmtpTls.TLS:
            client: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=ANSWER_SECONDS, context=context
            )
        else:
            client = smtplib.SMTP(server.host, server.port, timeout=ANSWER_SECONDS)
        try:
            if server.tls is SmtpTls.START_TLS:
                client.starttls(context=context)
            login = directory / "login"
            if login.exists():  # read for each mail, so a renewed Secret counts at once
                user, _, password = login.read_text().strip().partition(":")
                client.login(user, password)
        except BaseException:
            client.close()
            raise
        return client


def _refused(code: int) -> TryOutcome:
    """Return what a reply of SMTP means: 5xx for good, anything else for now (RFC 5321, 4.2.1)."""
    return TryOutcome(TryReason.REJECTED if 500 <= code < 600 else TryReason.BUSY, code)
