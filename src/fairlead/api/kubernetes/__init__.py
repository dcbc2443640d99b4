"""The kinds of Kubernetes, as far as Fairlead reads or writes them.

Begin with `core.py`.
"""
