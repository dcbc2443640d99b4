"""Programs and probes that the agent runs, each of which may hang.

Begin with `probes.py`.
"""
