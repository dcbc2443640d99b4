"""Answers: in which form, with which columns, once or as a watch.

Begin with `respond.py`.
"""
