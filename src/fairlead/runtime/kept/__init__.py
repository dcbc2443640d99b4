"""Records that outlive objects: history, the audit book, lines of logs, numbers of jobs.

Begin with `history.py`.
"""
