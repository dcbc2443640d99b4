"""Admission: what defaults, validates and gates objects before they are stored (pure).

The webhook of a real cluster and the embedded API server call the same functions, and the
controllers decide correctly where neither was asked.
"""
