"""The compiled scan of audit lines, an extra (`fairlead[fast]`): all works without this folder.

Nothing imports it by name. `parallel.py` loads `compiled.py` for large logs where numba is
installed; read that first.
"""
