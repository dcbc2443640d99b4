"""The admission webhook: gates pods that opt in, refuses jobs that break the rules."""
