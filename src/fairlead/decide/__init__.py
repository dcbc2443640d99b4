"""The pure core: functions of values (state, policy, time) that return a `Decision`.

No await, no clock, no randomness, no I/O, no logging in this package; a test enforces it. The
sub-packages do not import each other; they share `actions`, `reasons` and `verdict`.
"""
