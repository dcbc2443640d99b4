"""What pages read, with whose rights, and what they may change.

Begin with `view.py`.
"""
