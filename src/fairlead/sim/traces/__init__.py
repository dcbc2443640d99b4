"""Recorded workloads: the jobs of a trace, and the readers of the formats they come in."""
