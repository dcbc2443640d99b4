"""What a process answers beside the API: the archive, explanations, decisions; who may ask.

Begin with `answers.py`.
"""
