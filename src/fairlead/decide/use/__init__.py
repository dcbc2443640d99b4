"""What jobs use of what they hold, and what follows from that.

Begin with `use_meter.py`.
"""
