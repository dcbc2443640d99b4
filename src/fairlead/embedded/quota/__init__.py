"""ResourceQuotas and LimitRanges as pure functions: what they count, refuse and fill in.

`amounts` has quantities that keep how they were written, `usage` what objects use, `limits` what
quotas make of a write, as kube-apiserver's admission does, and `ranges` the same for LimitRanges.
`verbs/quotas.py` applies them.
"""

from __future__ import annotations

from fairlead.api.values.amounts import Amounts, added
from fairlead.embedded.quota.limits import (
    Excess,
    charged,
    counted,
    freed,
    reduced,
    spec_problems,
)
from fairlead.embedded.quota.ranges import (
    ANNOTATION,
    filled_item,
    filled_spec,
    range_problems,
    range_violations,
)
from fairlead.embedded.quota.usage import REQUESTS, Served, may_count

__all__ = [
    "ANNOTATION", "REQUESTS", "Amounts", "Excess", "Served", "added", "charged", "counted",
    "filled_item", "filled_spec", "freed", "may_count", "range_problems", "range_violations",
    "reduced", "spec_problems",
]  # fmt: skip
