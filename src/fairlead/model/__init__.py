"""The world a decision sees: the node table (columns), gangs, transactions. Pure: no clock, no
I/O.
"""
