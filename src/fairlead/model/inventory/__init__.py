"""The nodes in columns, and which of them a member may use.

Begin with `nodes.py`, then `fits.py`.
"""
