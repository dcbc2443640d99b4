"""Installs Fairlead on a cluster, checks and removes it; the chart has the same source."""
