"""What members report, and why they failed.

Begin with `progress.py`.
"""
