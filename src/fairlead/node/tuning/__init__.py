"""Tuning of the machine: profiles, what differs from them, what was set, and how it is taken back.

`formula` and `profile` say what is wanted, `values` where that is on the machine, `verify`
compares, `record` keeps what was there before, `apply` sets and restores, `kubelet_drop_in` has
what counts from the kubelet's next start.
"""

from fairlead.node.tuning.apply import Restored, TuningOutcome, restore, tune
from fairlead.node.tuning.facts import FACT_NAMES, read_facts
from fairlead.node.tuning.kubelet_drop_in import (
    DropIn,
    drop_in,
    is_kubelet_down,
    remove_drop_in,
    take_back,
    write_drop_in,
)
from fairlead.node.tuning.profile import (
    NO_PROFILE,
    MachineProfile,
    ReadyProfile,
    load_profile,
    parse_profile,
    profile_path,
    shipped_names,
    unknown_facts,
)
from fairlead.node.tuning.record import RecordError
from fairlead.node.tuning.roll_out import RollOut, roll_out
from fairlead.node.tuning.verify import TuningFinding, verify

__all__ = [
    "FACT_NAMES", "NO_PROFILE", "DropIn", "MachineProfile", "ReadyProfile", "RecordError",
    "Restored", "RollOut", "TuningFinding", "TuningOutcome", "drop_in", "is_kubelet_down",
    "load_profile", "parse_profile", "profile_path", "read_facts", "remove_drop_in",
    "restore", "roll_out", "shipped_names", "take_back", "tune", "unknown_facts",
    "verify", "write_drop_in",
]  # fmt: skip
