"""Providers of nodes: they list, launch and terminate the machines of a pool."""
