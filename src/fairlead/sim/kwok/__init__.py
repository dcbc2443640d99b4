"""KWOK's Stage objects, read as profiles of virtual nodes.

Begin with `stages.py`.
"""
