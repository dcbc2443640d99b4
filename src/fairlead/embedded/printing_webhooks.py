"""What `kubectl get` shows of webhook configurations (pkg/printers/internalversion)."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.embedded.printing import GENERIC, Cells, Column, Object, Printer

_NAME, _AGE = GENERIC.columns


def _cells(obj: Object, now: float) -> Cells:
    name, age = GENERIC.cells(obj, now)
    return [name, len(obj.get("webhooks") or ()), age]


_PRINTER = Printer(
    (_NAME, Column("Webhooks", "How many webhooks the configuration has.", "integer"), _AGE), _cells
)
#: Printers of the kinds of webhook configurations, by (group, plural).
WEBHOOK_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("admissionregistration.k8s.io", f"{which}webhookconfigurations"): _PRINTER
    for which in ("mutating", "validating")
}
