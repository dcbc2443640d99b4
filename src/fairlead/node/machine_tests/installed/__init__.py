"""Tests of NVIDIA's that an image may have: run where they are installed, skipped elsewhere.

Each reads the output of its tool into figures. A tool that is busy, reaches nothing or says
something else than a result makes an Error: that says nothing of the machine.
"""
