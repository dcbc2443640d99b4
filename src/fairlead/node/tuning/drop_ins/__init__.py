"""Settings that count from an empty node, most by a start of the kubelet, containerd or the kernel.

`own_file` is how the agent's file in a directory of others' is written, `choice` what a profile has
it give; `kubelet`, `containerd` and `kernel` (with the menu of `grub`) count from a start,
`accepted` has what is set at once; `next_starts` has them together.
"""

from fairlead.node.tuning.drop_ins.accepted import accept_on_new, accepted_values
from fairlead.node.tuning.drop_ins.choice import DropIn
from fairlead.node.tuning.drop_ins.next_starts import DropIns, NextStart, StartPart, explained

__all__ = [
    "DropIn", "DropIns", "NextStart", "StartPart", "accept_on_new", "accepted_values", "explained",
]  # fmt: skip
