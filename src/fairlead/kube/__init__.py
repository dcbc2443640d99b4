"""Client for a real API server: kubeconfig and in-cluster authentication, HTTP transport."""
