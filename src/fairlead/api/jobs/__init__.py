"""The kinds Job and JobArray: what they say, where their members run, what they used.

Begin with `job.py`, then `placement.py`.
"""
