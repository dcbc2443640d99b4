"""The checks as data, one module per subject; `registry` joins them in order of harm."""
