"""A Prometheus server: what its series cost, who uses them, and which can be dropped."""
