"""Values that people and objects write as text: amounts, instants, indices, shares; and bounds.

Begin with `quantity.py`, then `times.py`. Imports no other part of the API.
"""
