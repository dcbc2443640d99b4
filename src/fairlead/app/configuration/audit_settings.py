"""Settings of the audit records: see `controller_settings.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.api.values.sections import Section
from fairlead.runtime.kept.audit_export import TARGETS_MAX, AuditAddress, parse_target


class AuditSettings(Section, frozen=True):
    """Records of what was taken from jobs and the fleet."""

    export_to: Annotated[
        tuple[Annotated[str, Meta(max_length=512)], ...],
        Meta(max_length=TARGETS_MAX, description="Where records are sent as they are written: "
             "https://HOST/PATH (posts of JSON lines), tls://HOST:PORT, tcp:// and udp:// "
             "(syslog), file:///PATH (JSON lines). A file audit-token in "
             "notices.credentialsDirectory is sent with posts."),
    ] = ()  # fmt: skip

    def addresses(self) -> list[AuditAddress]:
        """Return where the targets are."""
        return [parse_target(each) for each in self.export_to]


def conflicts_of_audit(settings: AuditSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that cannot be."""
    for i, text in enumerate(settings.export_to):
        try:
            parse_target(text)
        except ValueError as error:
            yield f"audit.exportTo[{i}]", f"'{text}' is no target: it {error}"
