"""Settings of the page for the users of a cluster, and their file.

`fairlead web-server --settings FILE` reads them; the installation writes the file from its value
`web.settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from fairlead.api.values.sections import HOUR, Section, about, within
from fairlead.input.sections import load

#: Names that only the cluster itself gives.
SYSTEM_PREFIX = "system:"
_HTTPS = r"^(https://[^\s/?#@\"']+(/[^\s?#\"']*)?)?$"


class OidcSettings(Section, frozen=True):
    """Sign-in at an OpenID provider: authorization code with PKCE."""

    issuer: Annotated[
        str, Meta(pattern=_HTTPS, description="URL of the provider; empty: no such sign-in.")
    ] = ""
    client_id: Annotated[str, about("Under which name the provider knows the page.")] = ""
    scopes: Annotated[tuple[str, ...], about("What is asked for beside openid.")] = (
        "profile", "email", "groups",
    )  # fmt: skip
    username_claim: Annotated[
        str, about("Claim with the user's name, where API servers do not take the token.")
    ] = "sub"
    username_prefix: Annotated[
        str, Meta(min_length=1, description="What stands before that name in the cluster's rights.")
    ] = "oidc:"
    groups_claim: Annotated[str, about("Claim with the user's groups, likewise.")] = "groups"
    groups_prefix: Annotated[
        str, Meta(min_length=1, description="What stands before each group, likewise.")
    ] = "oidc:"


class ProxySettings(Section, frozen=True):
    """Sign-in by a proxy that names its users in headers, and shows a certificate."""

    name: Annotated[
        str,
        about("DNS name in the proxy's certificate, of the authority in web.proxyCaSecretName; "
              "empty: no such proxy. With one there is no other way in."),
    ] = ""  # fmt: skip
    user_header: Annotated[
        str, Meta(pattern="^[A-Za-z0-9-]+$", description="Header with the user.")
    ] = "X-Forwarded-User"
    groups_header: Annotated[
        str, Meta(pattern="^[A-Za-z0-9-]+$", description="Header with the groups, comma-separated.")
    ] = "X-Forwarded-Groups"  # fmt: skip
    prefix: Annotated[
        str,
        Meta(min_length=1,
             description="What stands before each user and group in the cluster's rights."),
    ] = "proxy:"  # fmt: skip


class WebSettings(Section, frozen=True):
    """The page for the users of a cluster."""

    url: Annotated[
        str,
        Meta(pattern=r"^https://[^\s/?#@\"']+$", description="Where browsers find the page."),
    ] = "https://localhost:8443"
    grafana_url: Annotated[
        str,
        Meta(pattern=r"^(https?://[^\s?#@\"']+)?$",
             description="Grafana with the boards of Fairlead, to which pages link; empty: none."),
    ] = ""  # fmt: skip
    tokens: Annotated[bool, about("Let users sign in with a token of the cluster.")] = True
    session_seconds_max: Annotated[
        int,
        within(300, 24 * HOUR, "A sign-in without a token of the cluster lasts so long; with one, "
               "as long as the token."),
    ] = 8 * HOUR  # fmt: skip
    sessions_max: Annotated[int, within(1, 10_000, "Browsers that are signed in at a time.")] = 1024
    oidc: OidcSettings = OidcSettings()
    proxy: ProxySettings = ProxySettings()

    @property
    def host(self) -> str:
        """What browsers send as `Host`."""
        return urlsplit(self.url).netloc.lower()


def conflicts(settings: WebSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of settings that do not go together."""
    if settings.oidc.issuer and not settings.oidc.client_id:
        yield "oidc.clientId", "oidc.issuer takes it"
    for path, prefix in (
        ("oidc.usernamePrefix", settings.oidc.username_prefix),
        ("oidc.groupsPrefix", settings.oidc.groups_prefix),
        ("proxy.prefix", settings.proxy.prefix),
    ):
        if is_reserved(prefix):
            yield path, f"names that begin with {SYSTEM_PREFIX} are the cluster's own"
    if settings.proxy.name and settings.oidc.issuer:
        yield "proxy.name", "with a proxy there is no other way in, so oidc.issuer must be empty"


def is_reserved(name: str) -> bool:
    """Return True for what is, or may become, a name that only the cluster itself gives."""
    return name.startswith(SYSTEM_PREFIX) or SYSTEM_PREFIX.startswith(name)


def load_web_settings(path: Path) -> WebSettings:
    """Return the settings of a file; CliError with all mistakes."""
    return load(path, WebSettings, conflicts)
