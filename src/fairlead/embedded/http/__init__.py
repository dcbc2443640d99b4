"""The API server: the Kubernetes HTTP API over the embedded cluster's service, on aiohttp."""
