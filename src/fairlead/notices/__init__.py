"""Sends notices of jobs: to URLs, by mail, to commands of the owner of the cluster; audit records.

`http_notices` has the guard of addresses at the place where it counts, the connection.
"""

from fairlead.notices.audit_senders import audit_target
from fairlead.notices.command_notices import CommandNotices
from fairlead.notices.http_notices import HttpNotices
from fairlead.notices.mail_notices import MailNotices
from fairlead.notices.senders import Senders

__all__ = [
    "CommandNotices",
    "HttpNotices",
    "MailNotices",
    "Senders",
    "audit_target",
]
