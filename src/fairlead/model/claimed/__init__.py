"""What jobs claim beside amounts: volumes and devices, and where these can be had.

Begin with `volumes.py` and `devices.py`.
"""
