"""What a control plane does besides serving: claims of devices and volumes, leases of nodes.

Begin with `own_mirrors.py`.
"""
