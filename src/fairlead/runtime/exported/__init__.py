"""Metrics, by subject, and the page that shows them.

Begin with `metrics.py`.
"""
