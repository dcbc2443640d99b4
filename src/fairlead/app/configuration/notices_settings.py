"""Settings of the notices controller: see `controller_settings.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.api.jobs.job_defaults import NoticeTerms
from fairlead.api.jobs.notify import MAIL_ADDRESS
from fairlead.api.validation.notify_rules import parse_url
from fairlead.api.values.sections import Section, about, within
from fairlead.decide.notices import (
    PROVIDER,
    SECRET_URL,
    MailServer,
    NoticesPolicy,
    SmtpTls,
    TicketsPolicy,
    TicketTarget,
    parse_networks,
)

LISTED_MAX = 64
TICKETS_TO_MAX = 4
_POLICY = NoticesPolicy()


class NoticesSettings(Section, frozen=True):
    """Notices of jobs, to URLs and by mail."""

    enabled: Annotated[
        bool,
        about("Send the notices that jobs ask for in spec.notify; false: such jobs are refused, "
              "and no Secret is read."),
    ] = True  # fmt: skip
    allowed_networks: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(max_length=LISTED_MAX, description="Networks beside the public internet that URLs may "
             "lead to, also without TLS, such as 10.20.0.0/16. All tenants can reach what listens "
             "there."),
    ] = ()  # fmt: skip
    namespace_per_minute: Annotated[
        int, within(1, 10_000, "Tries to send that begin within a minute, of a namespace.")
    ] = _POLICY.namespace_per_minute
    per_minute: Annotated[
        int, within(1, 100_000, "Tries to send that begin within a minute, in all.")
    ] = _POLICY.per_minute
    smtp_host: Annotated[
        str, Meta(max_length=253, description="Mail server; empty: no mail is sent.")
    ] = ""
    smtp_port: Annotated[int, within(1, 65_535, "Its port.")] = 587
    smtp_tls: Annotated[
        SmtpTls, about("StartTls, Tls (from the first byte on, port 465) or None.")
    ] = SmtpTls.START_TLS
    mail_from: Annotated[str, Meta(max_length=254, description="Address that mail is from.")] = ""
    mail_domains: Annotated[
        tuple[Annotated[str, Meta(max_length=253)], ...],
        Meta(max_length=LISTED_MAX, description="Domains to whose addresses mail is sent, such as "
             "example.com; without subdomains."),
    ] = ()  # fmt: skip
    tickets_to: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=512)], ...],
        Meta(max_length=TICKETS_TO_MAX, description="Where tickets of nodes that need a person go "
             "to: https://HOST/PATH; Secret, the URL in the file tickets-url of "
             "credentialsDirectory; Provider, the cloud that the machine is of. Needs "
             "health.enabled."),
    ] = ()  # fmt: skip
    tickets_dry_run: Annotated[
        bool, about("Record the tickets that would be sent, and send none.")
    ] = False
    credentials_directory: Annotated[
        str,
        Meta(min_length=1, max_length=512, description="Has the files login (user:password of the "
             "mail server), ca.crt (trusted beside the system's authorities), tickets-url and "
             "tickets-key (signs tickets); files that are not there are not used."),
    ] = "/etc/fairlead-notices"  # fmt: skip

    def terms(self) -> NoticeTerms:
        """Return which targets are served; those of commands are the embedded cluster's."""
        domains = tuple(each.lower() for each in self.mail_domains) if self.smtp_host else ()
        return NoticeTerms(self.enabled, domains)

    def policy(self) -> NoticesPolicy:
        """Return the controller's policy."""
        return NoticesPolicy(
            self.terms(), namespace_per_minute=self.namespace_per_minute,
            per_minute=self.per_minute,
        )  # fmt: skip

    def tickets(self) -> TicketsPolicy:
        """Return the tickets controller's policy."""
        return TicketsPolicy(
            tuple(ticket_target(each) for each in self.tickets_to), is_dry_run=self.tickets_dry_run
        )

    def mail_server(self) -> MailServer | None:
        """Return the mail server; None where there is none."""
        if not self.smtp_host:
            return None
        return MailServer(
            self.smtp_host,
            self.smtp_port,
            self.smtp_tls,
            self.mail_from,
            self.credentials_directory,
        )


def ticket_target(text: str) -> TicketTarget:
    """Return a target of tickets. It is named by the host of its URL, as a URL may be a credential;
    ValueError for what is none.
    """
    if text in (PROVIDER, SECRET_URL):
        return TicketTarget(text)
    parts = parse_url(text)
    if isinstance(parts, str):
        raise ValueError(parts)  # noqa: TRY004 - of the text
    return TicketTarget(parts.hostname or "", text)


def conflicts_of_notices(settings: NoticesSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that cannot be, or do not go together."""
    for i, text in enumerate(settings.allowed_networks):
        try:
            parse_networks((text,))
        except ValueError as error:
            yield f"notices.allowedNetworks[{i}]", f"'{text}' is not a network: {error}"
    named = set[str]()
    for i, text in enumerate(settings.tickets_to):
        path = f"notices.ticketsTo[{i}]"
        try:
            name = ticket_target(text).name
        except ValueError as error:
            yield path, f"it is no URL, nor {PROVIDER} or {SECRET_URL}: {error}"
            continue
        if name in named:
            yield path, f"'{name}' is there already; each target has a host of its own"
        named.add(name)
    for i, domain in enumerate(settings.mail_domains):
        if not MAIL_ADDRESS.fullmatch(f"x@{domain}"):
            yield f"notices.mailDomains[{i}]", f"'{domain}' is not a domain such as example.com"
    if settings.smtp_host and not MAIL_ADDRESS.fullmatch(settings.mail_from):
        why = "must be an address such as fairlead@example.com where smtpHost is set"
        yield "notices.mailFrom", f"'{settings.mail_from}' {why}"
    if settings.smtp_host and not settings.mail_domains:
        why = "must name the domains that mail is sent to where smtpHost is set"
        yield "notices.mailDomains", why
