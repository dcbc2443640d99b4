"""Notices of a job: who is notified of what, and how far the delivery of each one is.

`spec.notify` is the user's; `status.notices` is written by the notices controller alone. The status
names a target by its index and never shows what the target is: a URL may be a credential.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

from msgspec import Meta

from fairlead.api.meta import Instant, Wire
from fairlead.api.values.bounds import doc

#: Targets of a job.
NOTIFY_MAX = 4
URL_MAX = 2048
MAIL_MAX = 254  # RFC 5321, 4.5.3.1.3, without the brackets
ARGUMENTS_MAX = 32
ARGUMENT_MAX = 1024
KEY_MAX = 253
#: The one Secret of a namespace that is read for notices, and its key that signs them.
NOTIFY_SECRET = "fairlead-notify"  # noqa: S105 # the name of an object
SIGNING_KEY = "signing-key"
#: The key that is meant by a target that names none.
DEFAULT_URL_KEY = "url"
#: Keys of a Secret, as the API server has them.
SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
#: One address without comments, quotes or lists: nothing that a mail server, or a header, reads as
#: more than one.
MAIL_ADDRESS = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}@([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)+)"
)


class NoticeEvent(Enum):
    """What a notice may be about."""

    START = "Start"
    END = "End"
    FAIL = "Fail"
    PREEMPT = "Preempt"
    IDLE = "Idle"


class NoticeForm(Enum):
    """The form of the body that is posted to a URL."""

    JSON = "Json"
    SLACK = "Slack"
    TEAMS = "Teams"


class Notify(Wire, frozen=True):
    """One target, and the events that it is notified of. Exactly one target is set."""

    on: Annotated[
        tuple[NoticeEvent, ...],
        Meta(
            description="Start (the gang runs for the first time), End (the job has ended, however "
            "it did), Fail (it has failed), Preempt (it gave its nodes back), Idle (the idle "
            "policy warns of it).",
            extra_json_schema={"minItems": 1, "maxItems": len(NoticeEvent)},
        ),
    ]
    url: Annotated[
        str,
        doc(
            "URL that a notice is posted to. All who may read the job may read it: keep one that "
            "is a credential in the Secret, and name its key in urlKey.",
            maxLength=URL_MAX,
        ),
    ] = ""
    url_key: Annotated[
        str,
        doc(f"Key of the namespace's Secret {NOTIFY_SECRET} that has the URL.", maxLength=KEY_MAX),
    ] = ""
    mail: Annotated[str, doc("Mail address, of a domain of the settings.", maxLength=MAIL_MAX)] = ""
    command: Annotated[
        Annotated[
            tuple[Annotated[str, doc(maxLength=ARGUMENT_MAX)], ...],
            doc(maxItems=ARGUMENTS_MAX),
        ],
        doc("Program and arguments, run by `fairlead up` itself; on no other cluster."),
    ] = ()
    form: Annotated[
        NoticeForm | None,
        doc("Form of what is posted: Json, Slack or Teams. Default: by the host of the URL."),
    ] = None


class NoticeState(Enum):
    """How far the delivery of one notice is."""

    SENDING = "Sending"
    DELIVERED = "Delivered"
    #: No further try can mend it.
    REFUSED = "Refused"
    GIVEN_UP = "GivenUp"


class NoticeRecord(Wire, frozen=True):
    """The latest notice of one event to one target."""

    target: Annotated[int, doc("Index of the target in spec.notify.")]
    event: Annotated[NoticeEvent, doc("What it is about.")]
    attempt: Annotated[int, doc("The attempt that it is about.")]
    tries: Annotated[int, doc("How often sending it was begun.")]
    state: Annotated[NoticeState, doc("Sending, Delivered, Refused or GivenUp.")]
    reason: Annotated[str, doc("One word for how the latest try ended.")] = ""
    code: Annotated[int | None, doc("Status of HTTP or SMTP, or the exit code.")] = None
    next_try_at: Annotated[Instant | None, doc("No further try begins before.")] = None
