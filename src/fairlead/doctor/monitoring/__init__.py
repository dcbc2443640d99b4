"""Alert rules for Prometheus and dashboards for Grafana, from the checks and from own metrics."""
