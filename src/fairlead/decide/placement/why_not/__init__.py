"""Why a gang fits nowhere, in words: on the cluster as it is, and on the empty one.

Begin with `unplaceable.py`.
"""
