"""What `kubectl get` shows of webhook configurations and endpoint slices.

Columns are those of pkg/printers/internalversion.
"""

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
_SHOWN_MAX = 3


def _slice_cells(obj: Object, now: float) -> Cells:
    name, age = GENERIC.cells(obj, now)
    ports = [str(port.get("port", "*")) for port in obj.get("ports") or ()]
    addresses = [a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]
    return [name, obj.get("addressType") or "", _few(ports), _few(addresses), age]


def _few(texts: list[str]) -> str:
    """Return the first texts and how many there are beyond them."""
    shown = ",".join(texts[:_SHOWN_MAX]) or "<unset>"
    more = len(texts) - _SHOWN_MAX
    return f"{shown} + {more} more..." if more > 0 else shown


_SLICE_PRINTER = Printer(
    (
        _NAME,
        Column("AddressType", "IPv4, IPv6 or FQDN.", "string"),
        Column("Ports", "Ports of each endpoint.", "string"),
        Column("Endpoints", "Addresses of the endpoints.", "string"),
        _AGE,
    ),
    _slice_cells,
)
#: Printers by (group, plural).
MORE_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _PRINTER,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _PRINTER,
    ("discovery.k8s.io", "endpointslices"): _SLICE_PRINTER,
}
