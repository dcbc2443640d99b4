"""The simulator: virtual time, faults, checkers, reports."""
