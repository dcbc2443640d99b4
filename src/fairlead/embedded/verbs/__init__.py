"""What an API server does with a request: create, replace, patch, delete, list, watch."""
