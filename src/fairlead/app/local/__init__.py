"""The embedded cluster as processes and files of this machine.

Begin with `embedded.py`.
"""
