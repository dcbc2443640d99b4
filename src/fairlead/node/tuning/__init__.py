"""Tuning of the machine: profiles, what differs from them, what was set, and how it is taken back.

`formula` and `profile` say what is wanted, `values` where that is on the machine, `verify`
compares, `record` keeps what was there before, `apply` sets and restores, `drop_ins` has what
counts from the next start of the kubelet, of containerd or of the kernel.
"""

from fairlead.node.tuning.apply import Restored, TuningOutcome, restore, tune
from fairlead.node.tuning.drop_ins import (
    DropIns,
    NextStart,
    accept_on_new,
    accepted_values,
    explained,
)
from fairlead.node.tuning.facts import FACT_NAMES, read_facts
from fairlead.node.tuning.gpus import with_gpus
from fairlead.node.tuning.profile import (
    NO_PROFILE,
    PROFILE_NAME,
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
    "FACT_NAMES", "NO_PROFILE", "PROFILE_NAME", "DropIns", "MachineProfile", "NextStart",
    "ReadyProfile", "RecordError", "Restored", "RollOut", "TuningFinding", "TuningOutcome",
    "accept_on_new", "accepted_values", "explained", "load_profile", "parse_profile",
    "profile_path", "read_facts", "restore", "roll_out", "shipped_names", "tune", "unknown_facts",
    "verify", "with_gpus",
]  # fmt: skip
