"""Which API server a command talks to, as whom, and the flags that all commands share.

Begin with `common.py`, then `connect.py`.
"""
