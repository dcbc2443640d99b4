"""Who waits, in which order, and for what beside room: the state that outlives a decision.

Begin with `state.py`, then `queue.py`. What keeps jobs from starting whatever the room
(`quota.py`, `job_limits.py`, `borrowing.py`) is here, since the order of the queue depends on it.
"""
