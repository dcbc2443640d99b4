"""What lies outside an API: connections, other servers, other processes.

Begin with `fetch.py`.
"""
