"""What exporters on this machine say, in sketches by metric and pod; docs/design/monitoring.md.

`pages` fetches, `window` counts. A page is a stranger's: of bounded length, time and number of
samples, and it speaks for this machine alone.
"""

from fairlead.node.exports.pages import SAMPLES_MAX, PageStatusError, fetch_page, loopback_fault
from fairlead.node.exports.window import ExportsUsage, ExportWindow, SketchLine

__all__ = [
    "SAMPLES_MAX",
    "ExportWindow",
    "ExportsUsage",
    "PageStatusError",
    "SketchLine",
    "fetch_page",
    "loopback_fault",
]
