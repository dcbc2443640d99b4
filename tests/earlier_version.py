"""The source of an earlier version of the project, from the repository that the checkout has.

FAIRLEAD_UPGRADE_FROM names another revision than that of the previous release.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: What a release replaces: until the first one, a version with fewer kinds and fields than this.
PREVIOUS = "82abc461abe6fa5fa8468722b8aa1d508f3120e8"


def earlier_source(directory: Path) -> Path:
    """Write the tree of the earlier version; skip the test where the checkout lacks its revision.

    Only what runs and what installs is in it: `src` and `deploy`.
    """
    revision = os.environ.get("FAIRLEAD_UPGRADE_FROM") or PREVIOUS
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", revision, "src", "deploy"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the checkout has no revision {revision}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(directory, filter="data")
    return directory
