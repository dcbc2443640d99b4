"""The pods of a job, from its spec: members, their files, their variables.

Begin with `members.py`.
"""
