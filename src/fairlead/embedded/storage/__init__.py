"""The objects of the embedded cluster: versioned in memory, durable in an append-only log."""
