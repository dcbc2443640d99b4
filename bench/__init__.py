"""Benchmarks with bounds: `make bench`, or `make bench ONLY=planner`."""
