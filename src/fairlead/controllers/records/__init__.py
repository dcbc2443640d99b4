"""What is kept and sent about jobs and nodes: logs, use, traffic, notices, tickets.

Begin with `logs.py`.
"""
