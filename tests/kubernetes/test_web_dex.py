"""People sign in to the page at Dex, a real OpenID provider that is built from its module."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import pytest
from aiohttp import ClientSession, CookieJar, TCPConnector
from tests.e2e.test_web_sign_in import begun
from tests.e2e.test_web_users import world
from tests.e2e.users_world import URL, Grants, page_for_users
from tests.kubernetes.controlplane import PATIENCE_SECONDS, find_binaries, free_ports

from fairlead.app.configuration.web_settings import OidcSettings, WebSettings
from fairlead.webhook.certificates import Times, make

pytestmark = pytest.mark.kubernetes
CLIENT, SECRET = "fairlead page", "p@ss/w:rd"
MAIL, PASSWORD = "ada@example.com", "password"
#: The hash of that password, of the examples in Dex's own documents.
HASHED = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"


@dataclass
class Dex:
    """A running Dex, whose one user has a password."""

    issuer: str
    authority: str

    async def sign_in(self, url: str, password: str) -> str:
        """Go where the page sends a browser, and sign in; return where Dex sends it then, or ""."""
        connector = TCPConnector(ssl=False)
        async with ClientSession(connector=connector, cookie_jar=CookieJar(unsafe=True)) as http:
            async with http.get(url) as form:
                assert form.status == 200, await form.text()
                at = str(form.url)
            words = {"login": MAIL, "password": password}
            for _ in range(5):
                async with http.post(at, data=words, allow_redirects=False) as answer:
                    if answer.status not in (302, 303):
                        return ""
                    at = urljoin(at, answer.headers["Location"])
                while not at.startswith(URL):
                    async with http.get(at, allow_redirects=False) as answer:
                        if answer.status not in (302, 303):
                            break
                        at = urljoin(at, answer.headers["Location"])
                if at.startswith(URL):
                    return at
        return ""


@contextmanager
def dex(directory: Path) -> Generator[Dex]:
    """Run Dex with its objects in memory; it is killed at the end of the block."""
    binary = find_binaries() / "dex"
    if not binary.exists():
        pytest.skip("Dex not built: make kubernetes")
    authority, pair = make(("127.0.0.1",), now=time.time(), times=Times(), name="dex")
    (directory / "dex.crt").write_bytes(pair.certificate)
    (directory / "dex.key").write_bytes(pair.key)
    (port,) = free_ports(1)
    issuer = f"https://127.0.0.1:{port}/dex"
    files = [directory / "dex.crt", directory / "dex.key"]
    client = [CLIENT, SECRET, f"{URL}/login/oidc/return"]
    command = [binary, issuer, *files, *client, MAIL, HASHED]
    with (directory / "dex.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "listening on" not in (text := (directory / "dex.log").read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        yield Dex(issuer, authority.decode())
    finally:
        process.kill()
        process.wait()


async def test_who_signs_in_at_dex_has_the_rights_of_that_name(tmp_path: Path) -> None:
    users: dict[str, Grants] = {f"oidc:{MAIL}": {("*", "a")}}
    with dex(tmp_path) as provider:
        (tmp_path / "oidc-client-secret").write_text(f"{SECRET}\n")
        (tmp_path / "oidc-ca.crt").write_text(provider.authority)
        oidc = OidcSettings(issuer=provider.issuer, client_id=CLIENT, username_claim="email")
        settings = WebSettings(url=URL, oidc=oidc)
        async with page_for_users(users, world(), settings=settings, secrets=tmp_path) as page:
            browser = page.browser()
            assert await provider.sign_in(await begun(browser), "wrong") == ""
            back = await provider.sign_in(await begun(browser), PASSWORD)
            assert back.startswith(f"{URL}/login/oidc/return?")
            answer, text = await browser.get(
                back.removeprefix(URL), Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate",
                Sec_Fetch_Dest="document",
            )  # fmt: skip
            assert answer.status == 200, text
            shown = await browser.page("/jobs")
            assert "own-work" in shown
            assert "hidden-work" not in shown
            assert f"oidc:{MAIL}" in shown
            again, _ = await page.browser().get(back.removeprefix(URL))
            assert again.status != 200, "another browser does not come in by that address"
