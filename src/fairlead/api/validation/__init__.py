"""What objects of our own kinds must fulfil beyond their schemas; all mistakes at once.

Begin with `validate.py`.
"""
