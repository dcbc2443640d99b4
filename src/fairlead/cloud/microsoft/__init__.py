"""Machines of Azure.

Begin with `azure.py`.
"""
