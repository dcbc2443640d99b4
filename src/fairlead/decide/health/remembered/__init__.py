"""What is kept of faults and machines, and what another policy had decided upon it.

Begin with `fault_records.py`.
"""
