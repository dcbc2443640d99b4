"""Notices of jobs and tickets of nodes: what is to be sent, how often, what it says, and where it
may go (pure).

`decide` has the next step of one job and `tickets` that of one node, `tries` what both do again,
`turns` whose turn it is, `letters` and `ticket_letters` the words, `addresses` the guard. What a
job owes follows from its status (`decide/attempts/notices.py`), what a node owes from its record.
docs/design/notices.md has the reasons.
"""

from fairlead.decide.notices.actions import (
    Action,
    SendNotice,
    SettleNotice,
    TryOutcome,
    TryReason,
)
from fairlead.decide.notices.addresses import Network, is_listed, is_public, parse_networks
from fairlead.decide.notices.decide import (
    NoticeView,
    TryKey,
    decide_notices,
    is_past,
    key_of_try,
    wants_turn,
    with_record,
)
from fairlead.decide.notices.letters import (
    Delivery,
    Letter,
    Post,
    body_of,
    environment,
    form_of,
    headline,
    json_body,
    letter_of,
    mail_text,
    post_of,
)
from fairlead.decide.notices.policy import MailServer, NoticesPolicy, SmtpTls
from fairlead.decide.notices.ticket_letters import (
    Ticket,
    host_report_of,
    post_of_ticket,
    ticket_body,
    ticket_of,
)
from fairlead.decide.notices.tickets import (
    PROVIDER,
    SECRET_URL,
    SendTicket,
    SettleTicket,
    TicketAction,
    TicketKey,
    TicketsPolicy,
    TicketTarget,
    TicketView,
    decide_tickets,
    is_ticket_past,
    key_of_ticket,
    ticket_wants_turn,
    with_ticket,
)
from fairlead.decide.notices.turns import Turns

__all__ = [
    "PROVIDER",
    "SECRET_URL",
    "Action",
    "Delivery",
    "Letter",
    "MailServer",
    "Network",
    "NoticeView",
    "NoticesPolicy",
    "Post",
    "SendNotice",
    "SendTicket",
    "SettleNotice",
    "SettleTicket",
    "SmtpTls",
    "Ticket",
    "TicketAction",
    "TicketKey",
    "TicketTarget",
    "TicketView",
    "TicketsPolicy",
    "TryKey",
    "TryOutcome",
    "TryReason",
    "Turns",
    "body_of",
    "decide_notices",
    "decide_tickets",
    "environment",
    "form_of",
    "headline",
    "host_report_of",
    "is_listed",
    "is_past",
    "is_public",
    "is_ticket_past",
    "json_body",
    "key_of_ticket",
    "key_of_try",
    "letter_of",
    "mail_text",
    "parse_networks",
    "post_of",
    "post_of_ticket",
    "ticket_body",
    "ticket_of",
    "ticket_wants_turn",
    "wants_turn",
    "with_record",
    "with_ticket",
]
