"""Streams to pods: programs, ports and logs, over WebSocket and SPDY.

Begin with `stream_answers.py`.
"""
