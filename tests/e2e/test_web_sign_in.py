"""Sign-in at an OpenID provider and by a proxy: who comes in, under which name, and who not."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
import pytest
from aiohttp import ClientError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.e2e.openid_provider import CLIENT, SECRET, OpenIdProvider, openid_provider
from tests.e2e.test_web_users import world
from tests.e2e.users_world import URL, Grants, UserBrowser, UserPage, page_for_users

from fairlead.app.configuration.web_settings import (
    OidcSettings,
    ProxySettings,
    WebSettings,
    conflicts,
)
from fairlead.web.users.entrance import ATTEMPT_COOKIE, COOKIE

pytestmark = pytest.mark.e2e
USERS: dict[str, Grants] = {"oidc:ada": {("*", "a")}, "proxy:ada": {("*", "a")}}


@asynccontextmanager
async def provided(
    directory: Path, users: dict[str, Grants] = USERS, **oidc: Any
) -> AsyncIterator[tuple[UserPage, OpenIdProvider]]:
    """Yield a page whose users sign in at a provider."""
    async with openid_provider() as provider:
        (directory / "oidc-client-secret").write_text(f"{SECRET}\n")
        (directory / "oidc-ca.crt").write_text(provider.authority)
        settings = WebSettings(
            url=URL, oidc=OidcSettings(issuer=provider.issuer, client_id=CLIENT, **oidc)
        )
        async with page_for_users(users, world(), settings=settings, secrets=directory) as page:
            yield page, provider


async def begun(browser: UserBrowser, to: str = "/jobs") -> str:
    """Begin to sign in; return where the browser is sent."""
    answer, _ = await browser.get(f"/login/oidc?{urlencode({'to': to})}")
    assert answer.status == 303
    (cookie,) = answer.headers.getall("Set-Cookie")
    for part in (f"{ATTEMPT_COOKIE}=", "HttpOnly", "Secure", "SameSite=Lax", "Path=/"):
        assert part in cookie
    return answer.headers["Location"]


async def come_back(browser: UserBrowser, provider: OpenIdProvider, url: str) -> tuple[int, str]:
    """Agree at the provider, and come back from there; return the status and the page."""
    code, state = provider.authorize(url), dict(parse_qsl(urlsplit(url).query))["state"]
    query = urlencode({"code": code, "state": state})
    answer, text = await browser.get(
        f"/login/oidc/return?{query}", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate",
        Sec_Fetch_Dest="document",
    )  # fmt: skip
    return answer.status, text


async def test_who_signs_in_at_the_provider_has_the_rights_of_that_name(tmp_path: Path) -> None:
    async with provided(tmp_path) as (page, provider):
        browser = page.browser()
        assert "Sign in with your account" in (await browser.get("/jobs?q=own"))[1]
        url = await begun(browser, "/jobs?q=own")
        status, text = await come_back(browser, provider, url)
        assert status == 200
        assert 'content="0;url=/jobs?q=own"' in text
        assert set(browser.cookies) == {COOKIE}
        shown = await browser.page("/jobs")
        assert "own-work" in shown
        assert "hidden-work" not in shown
        assert "oidc:ada" in shown


async def test_a_token_that_api_servers_take_gives_the_name_that_they_know(tmp_path: Path) -> None:
    users: dict[str, Grants] = {"oidc:ada": set()}
    async with provided(tmp_path, users) as (page, provider):
        now = int(time.time())
        browser = page.browser()
        url = await begun(browser)
        nonce = dict(parse_qsl(urlsplit(url).query))["nonce"]
        provider.token = provider.signed({
            "iss": provider.issuer, "sub": "ada", "aud": CLIENT, "iat": now, "exp": now + 300,
            "nonce": nonce,
        })  # fmt: skip
        users[provider.token] = {("*", "b")}  # the token's name, as the API server has it
        assert (await come_back(browser, provider, url))[0] == 200
        assert "hidden-work" in await browser.page("/jobs")


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"}, "another client": {"aud": "other"},
    "two clients": {"aud": [CLIENT, "other"]}, "for another": {"azp": "other"},
    "too old": {"exp": 1}, "of the future": {"iat": 4_000_000_000},
    "another sign-in": {"nonce": "x"},
    "no nonce": {"nonce": None}, "no subject": {"sub": None}, "no end": {"exp": None},
    "no text": {"sub": 7}, "an empty name": {"sub": ""}, "two lines": {"sub": "a\nImpersonate: b"},
    "not ASCII": {"sub": "\u0430da"}, "many groups": {"groups": [f"g{n}" for n in range(300)]},
    "groups of no kind": {"groups": {"a": 1}},
}  # fmt: skip


@pytest.mark.parametrize("claims", BAD_CLAIMS.values(), ids=BAD_CLAIMS.keys())
async def test_a_token_that_does_not_hold_gives_no_session(
    claims: dict[str, Any], tmp_path: Path
) -> None:
    async with provided(tmp_path) as (page, provider):
        browser = page.browser()
        provider.claims = claims
        status, _ = await come_back(browser, provider, await begun(browser))
        assert status in (401, 403)
        assert COOKIE not in browser.cookies
        provider.claims = {}
        assert (await come_back(browser, provider, await begun(browser)))[0] == 200, "a good one"


@pytest.mark.parametrize("kind", ["none", "shared-secret", "other-key", "public-key", "garbage"])
async def test_a_token_with_another_signature_gives_no_session(kind: str, tmp_path: Path) -> None:
    async with provided(tmp_path) as (page, provider):
        browser = page.browser()
        url = await begun(browser)
        now = int(time.time())
        claims = {"iss": provider.issuer, "sub": "ada", "aud": CLIENT, "iat": now, "exp": now + 300,
                  "nonce": dict(parse_qsl(urlsplit(url).query))["nonce"]}  # fmt: skip
        other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        headers = {"kid": provider.kid}
        provider.token = {
            "none": jwt.encode(claims, None, algorithm="none", headers=headers),
            "shared-secret": jwt.encode(claims, SECRET * 4, algorithm="HS256", headers=headers),
            "other-key": jwt.encode(claims, other, algorithm="RS256", headers=headers),
            "public-key": jwt.encode(claims, provider.kid * 32, algorithm="HS512", headers=headers),
            "garbage": "a.b.c",
        }[kind]
        assert (await come_back(browser, provider, url))[0] == 401
        assert COOKIE not in browser.cookies


async def test_a_code_of_another_browser_gives_no_session(tmp_path: Path) -> None:
    async with provided(tmp_path) as (page, provider):
        attacker, victim = page.browser(), page.browser()
        url = await begun(attacker)
        assert (await come_back(victim, provider, url))[0] == 401, "without an attempt of its own"
        await begun(victim)
        assert (await come_back(victim, provider, url))[0] == 401, "with another attempt"
        victim.cookies[ATTEMPT_COOKIE] = jwt.encode(
            {"state": "s", "nonce": "n", "verifier": "v", "to": "/", "exp": 4_000_000_000}, "x" * 32
        )
        answer, _ = await victim.get("/login/oidc/return?code=c&state=s")
        assert answer.status == 401, "a forged attempt"
        assert COOKIE not in victim.cookies
        own = await begun(victim)
        assert (await come_back(victim, provider, own))[0] == 200
        assert (await come_back(victim, provider, own))[0] == 401, "an attempt is good once"


async def test_what_the_provider_says_of_a_failure_is_shown_as_text(tmp_path: Path) -> None:
    async with provided(tmp_path) as (page, _):
        browser = page.browser()
        state = dict(parse_qsl(urlsplit(await begun(browser)).query))["state"]
        query = urlencode({"state": state, "error": "<script>alert(1)</script>\x1b[2J"})
        answer, text = await browser.get(f"/login/oidc/return?{query}")
        assert answer.status == 401
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        assert "\x1b" not in text


async def test_keys_that_the_provider_has_changed_are_read_again(tmp_path: Path) -> None:
    class Clock:
        ahead = 0.0

        def now(self) -> float:
            return time.time() + self.ahead

    async with provided(tmp_path) as (page, provider):
        browser = page.browser()
        assert (await come_back(browser, provider, await begun(browser)))[0] == 200
        provider.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        provider.kid = "two"
        assert (await come_back(browser, provider, await begun(browser)))[0] == 401, "too soon"
        assert provider.asked.count("/keys") == 1
        entrance: Any = page.server._entrance
        clock = Clock()
        clock.ahead = 11.0
        entrance._provider._clock = clock
        assert (await come_back(browser, provider, await begun(browser)))[0] == 200
        assert provider.asked.count("/keys") == 2


@pytest.mark.parametrize(
    "described", [{"issuer": "https://evil.example"}, {"token_endpoint": "http://127.0.0.1/token"},
                  {"jwks_uri": 7}, {"authorization_endpoint": None}],
)  # fmt: skip
async def test_a_provider_that_describes_another_is_not_used(
    described: dict[str, Any], tmp_path: Path
) -> None:
    async with provided(tmp_path) as (page, provider):
        provider.described = described
        answer, text = await page.browser().get("/login/oidc")
        assert answer.status == 503
        assert "does not describe the provider" in text


async def test_a_provider_with_an_unknown_certificate_is_not_asked(tmp_path: Path) -> None:
    async with provided(tmp_path) as (_, provider):
        (tmp_path / "oidc-ca.crt").unlink()
        settings = WebSettings(url=URL, oidc=OidcSettings(issuer=provider.issuer, client_id=CLIENT))
        async with page_for_users(USERS, settings=settings, secrets=tmp_path) as other:
            assert (await other.browser().get("/login/oidc"))[0].status == 503


@pytest.mark.parametrize("prefix", ["system:", "system:serviceaccount:x:", "s", "sys"])
def test_no_prefix_can_make_a_name_of_the_clusters_own(prefix: str) -> None:
    settings = WebSettings(
        oidc=OidcSettings(username_prefix=prefix, groups_prefix=prefix),
        proxy=ProxySettings(prefix=prefix),
    )
    assert {path for path, _ in conflicts(settings)} == {
        "oidc.usernamePrefix", "oidc.groupsPrefix", "proxy.prefix",
    }  # fmt: skip


# By a proxy


def certificate(directory: Path, name: str) -> tuple[bytes, ssl.SSLContext]:
    """Return a certificate of this name for clients, signed by itself, and what shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / f"{name}.pem"
    path.write_bytes(made + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(path)
    return made, context


@asynccontextmanager
async def proxied(directory: Path, tls: ssl.SSLContext | None) -> AsyncIterator[UserBrowser]:
    """Yield a client of a page that takes a proxy of the name proxy.example."""
    settings = WebSettings(url=URL, proxy=ProxySettings(name="proxy.example"))
    async with page_for_users(
        USERS, world(), settings=settings, secrets=directory, client_tls=tls
    ) as page:
        yield page.browser()


async def test_a_proxy_with_its_certificate_names_its_users(tmp_path: Path) -> None:
    authority, tls = certificate(tmp_path, "proxy.example")
    (tmp_path / "proxy-ca.crt").write_bytes(authority)
    async with proxied(tmp_path, tls) as browser:
        answer, text = await browser.get(
            "/jobs", X_Forwarded_User="ada", X_Forwarded_Groups="lab, system:masters"
        )
        assert answer.status == 200
        assert "own-work" in text
        assert "hidden-work" not in text, "a group of the proxy's is none of the cluster's"
        assert (await browser.get("/jobs"))[0].status == 401, "without a user"
        assert (await browser.get("/", X_Forwarded_User="a\tb"))[0].status in (400, 403)
        assert (await browser.get("/", X_Forwarded_User=""))[0].status == 403
        assert (await browser.post("/login", {"token": "token-proxy:ada"}))[0].status == 401
        form = {"csrf": "x"}
        change = "/change/cancel/a/own-work"
        assert (await browser.post(change, form, X_Forwarded_User="ada"))[0].status == 403


@pytest.mark.parametrize("who", ["without-one", "another-name"])
async def test_headers_from_elsewhere_than_the_proxy_name_no_user(who: str, tmp_path: Path) -> None:
    authority, tls = certificate(tmp_path, "other.example")
    (tmp_path / "proxy-ca.crt").write_bytes(authority)
    async with proxied(tmp_path, tls if who == "another-name" else None) as browser:
        for path in ("/", "/jobs", "/live?of=/jobs", "/logs/a/own-work"):
            answer, text = await browser.get(path, X_Forwarded_User="ada")
            assert answer.status == 401
            assert "own-work" not in text
        assert (await browser.get("/healthz"))[0].status == 200


async def test_a_certificate_of_another_authority_ends_the_connection(tmp_path: Path) -> None:
    authority, _ = certificate(tmp_path, "proxy.example")
    (tmp_path / "proxy-ca.crt").write_bytes(authority)
    _, forged = certificate(tmp_path, "proxy.example")
    async with proxied(tmp_path, forged) as browser:
        with pytest.raises((OSError, ClientError)):  # how it ends, TLS 1.3 leaves open
            await browser.get("/jobs", X_Forwarded_User="ada")
