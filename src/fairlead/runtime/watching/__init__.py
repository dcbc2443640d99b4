"""What a process knows of the cluster's objects: mirrors, and when they are up to date.

Begin with `mirror.py`; `barrier.py` waits for what was written.
"""
