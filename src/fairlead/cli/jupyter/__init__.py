"""Jupyter kernels as jobs: `provisioner.py` is what Jupyter starts, by an entry point."""
