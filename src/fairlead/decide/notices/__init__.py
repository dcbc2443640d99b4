"""Notices of jobs: what is to be sent, how often, what it says, and where it may go (pure).

`decide` has the next step of one job, `turns` whose turn it is, `letters` the words, `addresses`
the guard. What a job owes follows from its status (`decide/attempts/notices.py`).
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
    body_of,
    environment,
    form_of,
    headline,
    json_body,
    letter_of,
    mail_text,
)
from fairlead.decide.notices.policy import MailServer, NoticesPolicy, SmtpTls
from fairlead.decide.notices.turns import Turns

__all__ = [
    "Action",
    "Delivery",
    "Letter",
    "MailServer",
    "Network",
    "NoticeView",
    "NoticesPolicy",
    "SendNotice",
    "SettleNotice",
    "SmtpTls",
    "TryKey",
    "TryOutcome",
    "TryReason",
    "Turns",
    "body_of",
    "decide_notices",
    "environment",
    "form_of",
    "headline",
    "is_listed",
    "is_past",
    "is_public",
    "json_body",
    "key_of_try",
    "letter_of",
    "mail_text",
    "parse_networks",
    "wants_turn",
    "with_record",
]
