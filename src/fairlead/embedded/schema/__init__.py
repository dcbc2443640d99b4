"""Structural schemas: default, prune, validate; compiled, with a fast path in C."""
