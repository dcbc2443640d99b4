"""Fairlead: a machine-learning research cluster on Kubernetes, on a laptop, or simulated."""

__version__ = "0.1.0"
