"""When a job may begin: gates and dependencies.

Begin with `gate.py`.
"""
