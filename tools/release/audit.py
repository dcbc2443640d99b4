"""Known vulnerabilities of the packages that Fairlead runs with, by pip-audit.

    python -m tools.release.audit [--lock requirements/run.lock]

pip-audit asks the package index for what PyPI's advisory database says of each locked version. Exit
code 0: nothing is known of any. 1: something is known, and each is printed with the version that
mends it. 3: the index did not say of at least one, as a mirror that has files alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.release.build import LOCK, TOOLS

VULNERABLE, UNKNOWN = 1, 3


def report(found: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code and the lines of what pip-audit found (its format `json`)."""
    packages = found["dependencies"]
    known = [
        f"{each['name']} {each['version']}: {', '.join([entry['id'], *entry['aliases']])}; "
        f"mended in {', '.join(entry['fix_versions']) or 'no version'}"
        for each in packages
        for entry in each.get("vulns", ())
    ]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    lines = [*known, f"{len(packages) - len(unknown)} of {len(packages)} packages were audited"]
    if unknown:
        lines.append(f"the index said nothing of {', '.join(unknown)}")
    if known:
        return VULNERABLE, lines
    return UNKNOWN if unknown or not packages else 0, lines


def main() -> int:
    """Audit a lock file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lock", type=Path, default=LOCK)
    given = parser.parse_args()
    done = subprocess.run(
        [TOOLS / "pip-audit", "--requirement", given.lock, "--require-hashes", "--disable-pip",
         "--progress-spinner", "off", "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        found = json.loads(done.stdout)
    except ValueError:
        print(f"not audited: {done.stderr.strip()[-2000:]}", file=sys.stderr)
        return UNKNOWN
    code, lines = report(found)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
