"""What the webhook measures of itself, on the registry of its process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram

from fairlead.webhook.answers import Outcome, Path

_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class WebhookMetrics:
    """Requests by path and outcome with their time, and until when the certificate is valid."""

    def __init__(self, registry: CollectorRegistry, ends_at: Callable[[], float]) -> None:
        """Register the series; `ends_at` is asked at each scrape, 0 for no certificate."""
        self._requests = Histogram(
            "fairlead_webhook_request_duration_seconds",
            "Time from the request's head to its answer.",
            ["path", "outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        expiry = Gauge(
            "fairlead_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends; 0 without one.",
            registry=registry,
        )
        expiry.set_function(ends_at)

    def answered(self, path: Path, outcome: Outcome, seconds: float) -> None:
        """Note one answer."""
        self._requests.labels(path.name.lower(), outcome.value).observe(seconds)
