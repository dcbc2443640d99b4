"""The embedded cluster: store, API server, virtual nodes and the local node."""
