"""Which node belongs to which team: the shares of the teams as taints of nodes."""
