"""How values are written for people and read from them: text, tables, instants (pure).

Begin with `text.py`, then `table.py`. Imports no other part of the command line.
"""
