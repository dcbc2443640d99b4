"""Nodes and the pools that they are bought for: health, tests, reachability, the fleet.

Begin with `health.py`; `fleet.py` buys and removes.
"""
