"""Settings that count from the next start of the kubelet, of containerd or of the kernel.

`own_file` is how the agent's file in a directory of others' is written, `choice` what a profile has
it give; `kubelet`, `containerd` and `kernel` (with the menu of `grub`) are the three, `next_starts`
has them together.
"""

from fairlead.node.tuning.drop_ins.choice import DropIn
from fairlead.node.tuning.drop_ins.next_starts import DropIns, NextStart, StartPart, explained

__all__ = ["DropIn", "DropIns", "NextStart", "StartPart", "explained"]
