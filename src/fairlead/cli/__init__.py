"""What people see on a terminal. Heavy modules are imported inside commands, for start-up time.

Begin with `app.py`, then `connection/common.py` and `commands/wait.py`.
"""
