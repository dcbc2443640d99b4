"""A user of the cluster who looks: what he may see now, and questions that are asked as him.

What the mirrors show is what the API server says he may list (SubjectAccessReview). Everything else
(why a job waits, logs, the history, changes) is a request of his own: with his token where he has
given one, otherwise by impersonation, which the installation may grant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fairlead.api.reviews import UserInfo
from fairlead.api.status import Unauthorized
from fairlead.app.queries.access_reviews import AccessReviews
from fairlead.cli.connection.common import Common, Format
from fairlead.kube.kubeconfig import Connection
from fairlead.model.asks.topology import Level
from fairlead.runtime.clock import Clock
from fairlead.web.live import SessionEnded
from fairlead.web.pages import Site
from fairlead.web.sources.questions import Questions, QuestionThreads
from fairlead.web.sources.rights import Rights, rights_of_user
from fairlead.web.sources.view import ClusterViews

#: What a user may see is found out again after so long; the answers are kept by `AccessReviews`.
RIGHTS_SECONDS = 5.0
#: Of one user.
FOLLOWED_MAX = 4


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """A user; with the token that he has given, "" for none."""

    user: UserInfo
    token: str = ""

    def connection(self, own: Connection) -> Connection:
        """Return a connection as this user, to where ours leads."""
        if self.token:
            return replace(own, token=self.token, token_file=None, source="the user's token")
        extra = ((key, each) for key, values in self.user.extra.items() for each in values)
        # Every user is in this group, so it is not asked for: to grant it would be one right more.
        groups = tuple(each for each in self.user.groups if not each.startswith("system:"))
        return replace(
            own, impersonate_user=self.user.username, impersonate_groups=groups,
            impersonate_uid=self.user.uid, impersonate_extra=tuple(extra),
        )  # fmt: skip


class ClusterUsers:
    """What all users share."""

    def __init__(
        self,
        reviews: AccessReviews,
        views: ClusterViews,
        connection: Connection,
        threads: QuestionThreads,
        *,
        clock: Clock,
        levels: Sequence[Level],
    ) -> None:
        self.reviews, self.views, self.connection = reviews, views, connection
        self.threads, self.clock, self.levels = threads, clock, levels
        self._namespaces: tuple[int, frozenset[str]] = (-1, frozenset())

    def namespaces(self) -> frozenset[str]:
        """Return the namespaces in which there is something to show."""
        mirrors = self.views.mirrors
        if self._namespaces[0] != mirrors.version:
            each = (*mirrors.jobs.items(), *mirrors.arrays.items())
            self._namespaces = mirrors.version, frozenset(e.metadata.namespace for e in each)
        return self._namespaces[1]

    def viewer(self, identity: UserIdentity) -> UserViewer:
        """Return somebody who has just signed in."""
        connection = identity.connection(self.connection)
        common = Common(
            Format.TABLE, "", False, "", "", headers=True, color=False, quiet=True, verbosity=0,
            connection=connection,
        )  # fmt: skip
        questions = Questions(
            common, connection, self.clock, self.threads, followed_max=FOLLOWED_MAX
        )
        questions.answered = self.views.mirrors.touch
        return UserViewer(self, identity, questions)


class UserViewer:
    """One user who looks."""

    def __init__(self, users: ClusterUsers, identity: UserIdentity, questions: Questions) -> None:
        self.identity = identity
        self._users, self._questions = users, questions
        digest = hashlib.sha256(msgspec.json.encode(identity.user)).hexdigest()
        self._digest = f"{digest}{'t' if identity.token else ''}"
        self._rights: tuple[float, frozenset[str], Rights] | None = None

    @property
    def name(self) -> str:
        """See `Viewer`."""
        return self.identity.user.username

    async def site(self) -> Site:
        """See `Viewer`."""
        rights = await self._current()
        return Site(
            self._users.views.of(rights), self._questions, self.name, "default", "",
            self._users.levels, is_up=False, viewer=self._digest,
        )  # fmt: skip

    async def _current(self) -> Rights:
        identity, users = self.identity, self._users
        if identity.token:
            try:
                user = await users.reviews.user_of(identity.token, source=self.name)
            except Unauthorized as error:
                raise SessionEnded("Your token is no longer valid: sign in again.") from error
            if user != identity.user:
                raise SessionEnded("What the cluster says of you has changed: sign in again.")
        now, spaces = users.clock.now(), users.namespaces()
        if self._rights is None or self._rights[0] <= now or self._rights[1] != spaces:
            rights = await rights_of_user(users.reviews, identity.user, spaces)
            self._rights = now + RIGHTS_SECONDS, spaces, rights
        return self._rights[2]
