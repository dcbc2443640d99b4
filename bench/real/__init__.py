"""What the groups on a real control plane share: the ground, our processes, what they ask for."""
