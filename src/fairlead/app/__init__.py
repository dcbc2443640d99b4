"""Composition roots: which parts the embedded cluster and a replica of the operator consist of."""
