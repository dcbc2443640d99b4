"""Tests of nodes: which are due, alone and in pairs, and the gate before work.

Begin with `testing.py`.
"""
