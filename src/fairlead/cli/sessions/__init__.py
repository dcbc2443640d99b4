"""Programs and ports beside a member of a job, joined with this terminal.

Begin with `session.py`.
"""
