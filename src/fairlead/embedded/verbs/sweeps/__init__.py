"""What happens without a request: owned objects that go, evictions by taints, what a cluster has.

Begin with `collector.py`.
"""
