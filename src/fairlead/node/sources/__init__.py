"""The sources: each module has a reader, a pure judge, and `source`, which joins them."""
