"""Virtual nodes: the lives of simulated pods, as data."""
