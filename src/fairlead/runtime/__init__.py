"""The shell that all controllers share: client protocol, mirror, loop, queue, events, metrics."""
