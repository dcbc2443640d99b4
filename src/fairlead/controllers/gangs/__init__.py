"""Jobs and groups of pods as gangs: their index, their parts, their lives.

Begin with `jobs.py`; `job_index.py` says which of them has something to do.
"""
