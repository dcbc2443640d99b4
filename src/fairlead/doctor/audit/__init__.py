"""Audit logs: who calls the API server how often, at what cost, and what they do wrong."""
