"""Secrets that the tests give Fairlead, and the search for them in what it writes to its logs.

Clusters of the e2e tests have their token, the key of their certificate, and a variable of the
shell that batch scripts inherit; controllers on a real API server have the token of their
kubeconfig, jobs with a secret in their environment, and the password of a database. Each is used in
a run of the suites, and must not be in a line of their logs. What a program of a job prints is its
own affair.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairlead.app.run_file import LOG_FILE

#: What tools of machine learning take from their environment, as every shell and job has it.
VARIABLE, PLANTED = "WANDB_API_KEY", "planted-0f6c2f7ab59d4b1e8c55"


def found_in(text: str, secrets: Iterable[str]) -> list[str]:
    """Return the secrets that are in a text; of an empty one nothing is."""
    return [secret for secret in secrets if secret and secret in text]


def secrets_of(data: Path) -> Iterator[str]:
    """Yield the secrets of the data directory of a cluster, as far as they are there."""
    yield PLANTED
    token, certificate = data / "token", data / "tls.json"
    if token.exists():
        yield token.read_text().strip()
    if certificate.exists():
        for name, text in json.loads(certificate.read_text()).items():
            if name.endswith(".key") and text:
                # A line from its middle: the first ones are much the same in all keys.
                yield base64.b64decode(text).decode().splitlines()[2]


def leaks(directory: Path) -> list[str]:
    """Return `FILE: has SECRET...` for each log of a cluster below a directory that has one."""
    return [
        f"{log}: has {secret[:8]}..."
        for log in sorted(directory.glob(f"**/{LOG_FILE}*"))
        for secret in found_in(log.read_text(errors="replace"), secrets_of(log.parents[1]))
    ]
