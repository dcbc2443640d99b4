"""Reads what people write (YAML, settings files) into types, and states what is wrong with it."""
