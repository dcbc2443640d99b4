"""Machines of AWS.

Begin with `aws.py`.
"""
