"""What the agent keeps of faults, and what it reports.

Begin with `watch.py`.
"""
