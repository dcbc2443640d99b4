"""Programs, terminals, ports and files of a member of a job, joined with this machine.

Begin with `session.py`; `held_terminal.py` is this side of terminals that stay in the member.
"""
