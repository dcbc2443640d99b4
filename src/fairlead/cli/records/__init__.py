"""What jobs have done: their logs, their changes as they come, and jobs that have ended.

Begin with `follow.py`, then `ended_jobs.py`.
"""
