"""The local node: this machine, whose pods are real processes."""
