"""A certificate that another program keeps in files, such as a mounted Secret; read only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairlead.runtime.logs import SILENT, Logger
from fairlead.webhook.certificates import CRT, KEY, BadCertificate, Pair

FILE_BYTES_MAX = 1 << 20
LOOK_SECONDS = 10.0


class CertificateFiles:
    """Looks at `tls.crt` and `tls.key` of a directory and hands every new pair on.

    A mounted Secret changes both files at once, by renaming a directory; files that are copied one
    after the other do not fit together for a moment. So a pair that cannot be used is said and
    looked at again, while the last good one is served.
    """

    def __init__(
        self, directory: Path, serve: Callable[[Pair], None], *, log: Logger = SILENT
    ) -> None:
        self._directory = directory
        self._serve = serve
        self._log = log
        self._served: Pair | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look once."""
        try:
            pair = Pair(self._read(CRT), self._read(KEY))
            if pair != self._served:
                self._serve(pair)
                self._served = pair
        except (OSError, BadCertificate) as error:
            if str(error) != self._trouble:
                directory = str(self._directory)
                self._log.error(
                    "Webhook certificate cannot be used", directory=directory, error=str(error)
                )
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _read(self, name: str) -> bytes:
        with (self._directory / name).open("rb") as file:
            return file.read(FILE_BYTES_MAX)
