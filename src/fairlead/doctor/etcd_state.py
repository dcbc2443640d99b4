"""What the members of an etcd cluster say of themselves over etcd's own API (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fairlead.terminal import printable


class _Header(msgspec.Struct, frozen=True):
    member_id: int = 0


class EtcdStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `/v3/maintenance/status`. Fields that are zero are left out by etcd."""

    header: _Header = _Header()
    version: str = ""
    db_size: int = 0
    db_size_in_use: int = 0
    #: 0: a version before 3.6, which does not say.
    db_size_quota: int = 0
    leader: int = 0
    raft_term: int = 0
    raft_index: int = 0
    raft_applied_index: int = 0
    errors: tuple[str, ...] = ()


class EtcdMember(msgspec.Struct, frozen=True):
    """One member of the list; one that was added and never started has no name."""

    id: int = msgspec.field(name="ID")
    name: str = ""
    is_learner: bool = msgspec.field(name="isLearner", default=False)


class Alarm(msgspec.Struct, frozen=True):
    """An active alarm and the member that raised it."""

    member: int = msgspec.field(name="memberID", default=0)
    kind: str = msgspec.field(name="alarm", default="NONE")


class MemberList(msgspec.Struct, frozen=True):
    """The answer to `/v3/cluster/member/list`."""

    members: tuple[EtcdMember, ...] = ()


class AlarmList(msgspec.Struct, frozen=True):
    """The answer to `/v3/maintenance/alarm` with the action GET."""

    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True, slots=True)
class EtcdState:
    """One cluster. None: not read.

    `statuses` are of the members that were asked, by their address. `index_before` is the highest
    index of the raft log that any of them had before the first of these statuses was asked for.
    """

    statuses: tuple[tuple[str, EtcdStatus], ...] = ()
    index_before: int = 0
    members: tuple[EtcdMember, ...] | None = None
    alarms: tuple[Alarm, ...] | None = None

    def name_of(self, member: int) -> str:
        """Return a member's name, or its id as etcdctl writes it."""
        for each in self.members or ():
            if each.id == member and each.name:
                return printable(each.name)
        return f"{member:x}"


def page_of(status: EtcdStatus) -> bytes:
    """Return what a status says as the page of metrics that the checks read."""
    return "".join(f"{line}\n" for line in _lines(status)).encode()


def _lines(status: EtcdStatus) -> Iterator[str]:
    yield f"etcd_mvcc_db_total_size_in_bytes {status.db_size}"
    yield f"etcd_mvcc_db_total_size_in_use_in_bytes {status.db_size_in_use}"
    if status.db_size_quota > 0:
        yield f"etcd_server_quota_backend_bytes {status.db_size_quota}"
    yield f"etcd_server_has_leader {int(status.leader != 0)}"
    if status.version.replace(".", "").isalnum():
        yield f'etcd_server_version{{server_version="{status.version}"}} 1'
