"""Pods of other tools, placed as gangs: who belongs together, and what a group needs next."""
