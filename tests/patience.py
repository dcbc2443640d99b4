"""How long tests wait for what must come."""

from __future__ import annotations

#: What never comes fails its test in the test's own words, long before pytest ends it. What comes
#: at once on an idle machine may take a hundred times as long on one that has little left for us.
PATIENCE_SECONDS = 120.0
