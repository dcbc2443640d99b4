"""Machines of Google Cloud.

Begin with `gcp.py`.
"""
