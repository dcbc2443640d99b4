"""What a registry says of an image: whether it is there, its digest, size and architectures.

The API is that of the OCI distribution specification. Credentials are those that `docker login` and
`podman login` wrote to `~/.docker/config.json`; helpers of credentials are not run. They are sent
to the registry that they are of, and to the service of tokens that it names, by HTTPS alone, and
never follow a redirect. Nothing is pulled.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.decide.images.outlook import size_text
from fairlead.input.errors import CliError, Code, fail
from fairlead.runtime.outside.fetch import Redirects, TooMuch, Web, WebAccess

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
#: Docker Hub is called otherwise than its names say.
_HOSTS = {"docker.io": "registry-1.docker.io"}
_LOGINS = {"docker.io": "https://index.docker.io/v1/"}
_SECONDS_MAX = 20.0
#: Of a manifest (the specification asks registries for 4 MB), a token, and a configuration.
_BYTES_MAX = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_LOCAL = ("localhost", "127.0.0.1", "::1")


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = "linux"


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str = ""
    size: int = 0
    platform: _Platform | None = None


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    manifests: tuple[_Descriptor, ...] = ()
    config: _Descriptor = _Descriptor()
    layers: tuple[_Descriptor, ...] = ()


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class _Login(msgspec.Struct, frozen=True):
    auth: str = ""


class _Logins(msgspec.Struct, frozen=True):
    auths: dict[str, _Login] = {}


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image as its registry has it. `layers` are compressed bytes by digest, of the first
    architecture that it is for.
    """

    image: str
    digest: str
    layers: Mapping[str, int]
    architectures: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size of all layers, compressed."""
        return sum(self.layers.values())

    @property
    def words(self) -> str:
        """Return it as one line."""
        kinds = ", ".join(self.architectures) or "architecture not known"
        size = f"{size_text(self.size_bytes)} compressed"
        return f"{self.image}: {size}, {kinds}, {self.digest}"


def login_of(registry: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the user and password of a registry, as Basic authentication has them; "" for none,
    and where the file of logins cannot be read.
    """
    folder = environment.get("DOCKER_CONFIG") or f"{environment.get('HOME', '')}/.docker"
    try:
        found = msgspec.json.decode(Path(folder, "config.json").read_bytes(), type=_Logins)
    except (OSError, ValueError):
        return ""
    for name in (registry, f"https://{registry}", _LOGINS.get(registry, "")):
        text = found.auths.get(name, _Login()).auth
        try:
            if ":" in base64.b64decode(text, validate=True).decode():
                return text
        except (binascii.Error, UnicodeDecodeError):
            continue
    return ""


def look_up(image: str, login: str) -> RegistryImage:
    """Return what the registry of an image says of it; CliError."""
    full = full_image_name(image)
    try:
        repository = _Repository(full, login)
    except ValueError as error:
        message = f"{full!r} is not the name of an image: {error}"
        raise fail(Code.BAD_VALUE, message, help=("REGISTRY/PATH:TAG is one",)) from error
    try:
        return repository.read()
    except urllib.error.HTTPError as error:
        raise _refused(full, error.code, has_login=bool(login)) from error
    except (ValueError, TooMuch) as error:
        message = f"the registry of {full} answers what is no image: {error}"
        help_ = ("look at its address: the registry comes first in the name",)
        raise fail(Code.BAD_ANSWER, message, help=help_) from error
    except OSError as error:
        cause = getattr(error, "reason", None) or error
        message = f"the registry of {full} cannot be reached: {cause}"
        help_ = ("--check-image asks from this machine; nodes may reach it",)
        raise fail(Code.UNREACHABLE, message, help=help_) from error


class _NoImage(ValueError):
    """An answer that is no image; the message says why."""


def _refused(image: str, status: int, *, has_login: bool) -> CliError:
    registry = image.partition("/")[0]
    login = f"docker login {registry}"
    if status == 404:
        help_ = (f"look at its name and tag; a private one may look absent: {login}",)
        return fail(Code.NOT_STARTABLE, f"there is no image {image}", help=help_)
    if status in (401, 403):
        why = "refuses the login of this machine" if has_login else "asks for a login"
        pods = "pods need a secret of their own: imagePullSecrets of the service account"
        message = f"the registry of {image} {why} (HTTP {status})"
        return fail(Code.NOT_STARTABLE, message, help=(login, pods))
    if status == 429:
        message = f"the registry of {image} throttles this machine (HTTP 429)"
        return fail(Code.UNREACHABLE, message, help=(f"wait, or log in: {login}",))
    message = f"the registry of {image} answers HTTP {status}"
    return fail(Code.UNREACHABLE, message, help=("try again later, or leave --check-image out",))


class _Repository:
    """One image, and what this process may use to read it."""

    def __init__(self, image: str, login: str) -> None:
        """ValueError for what is not the name of an image."""
        image.encode("ascii")  # it goes into URLs
        self._image, self._login = image, login
        registry, _, rest = image.partition("/")
        name, at, digest = rest.partition("@")
        if not at:
            name, _, digest = rest.rpartition(":")
        self._name, self._reference = name, digest
        host = _HOSTS.get(registry, registry)
        scheme = "http" if urlsplit(f"//{host}").hostname in _LOCAL else "https"
        self._base = f"{scheme}://{host}/v2/{name}"
        self._access = WebAccess()

    def read(self) -> RegistryImage:
        """Return the image; OSError, ValueError, _NoImage among them."""
        manifest, digest = self._manifest(self._reference)
        platforms = [
            each for each in manifest.manifests
            if each.platform is not None and each.platform.os == "linux"
        ]  # fmt: skip
        if manifest.manifests:
            if not platforms:
                raise _NoImage("it is for no Linux")
            kinds = dict.fromkeys(each.platform.architecture for each in platforms if each.platform)
            manifest, _ = self._manifest(platforms[0].digest)
        else:
            kinds = {self._config(manifest.config.digest).architecture: None}
        if not manifest.layers:
            raise _NoImage("it has no layers")
        layers = {each.digest: max(each.size, 0) for each in manifest.layers}
        return RegistryImage(self._image, digest, layers, tuple(filter(None, kinds)))

    def _manifest(self, reference: str) -> tuple[_Manifest, str]:
        body = self._get(f"manifests/{reference}", ", ".join((*_INDEXES, *_MANIFESTS)))
        digest = f"sha256:{sha256(body).hexdigest()}"
        if _DIGEST.fullmatch(reference) and digest != reference:
            raise _NoImage(f"asked for {reference}, it sends {digest}")
        return msgspec.json.decode(body, type=_Manifest), digest

    def _config(self, digest: str) -> _Platform:
        if not _DIGEST.fullmatch(digest):
            raise _NoImage("its configuration has no digest of SHA-256")
        body = self._get(f"blobs/{digest}", "*/*")
        if f"sha256:{sha256(body).hexdigest()}" != digest:
            raise _NoImage("its configuration has another digest")
        return msgspec.json.decode(body, type=_Platform)

    def _get(self, path: str, accept: str) -> bytes:
        url = f"{self._base}/{path}"
        try:
            return _read(url, accept, self._access)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or self._access.authorization():
                raise
            with error:
                self._access = self._access_by(challenge)
        return _read(url, accept, self._access)

    def _access_by(self, challenge: str) -> WebAccess:
        """Return what answers a challenge; _NoImage."""
        kind, fields = challenge.partition(" ")[0].lower(), dict(_CHALLENGE.findall(challenge))
        login = base64.b64decode(self._login).decode()
        if kind == "basic":
            return WebAccess(login=login or ":")
        realm = urlsplit(fields.get("realm", ""))
        is_local = realm.scheme == "http" and realm.hostname in _LOCAL
        if kind != "bearer" or not (realm.scheme == "https" or is_local):
            raise _NoImage(f"a challenge that is not known: {challenge[:80]!r}")
        asked = {"service": fields.get("service", ""), "scope": f"repository:{self._name}:pull"}
        url = f"{realm.geturl()}?{urlencode(asked)}"
        answer = _read(url, "application/json", WebAccess(login=login))
        token = msgspec.json.decode(answer, type=_Token)
        return WebAccess(token=token.token or token.access_token)


def _read(url: str, accept: str, access: WebAccess) -> bytes:
    web = Web(access, redirects=Redirects.BARE)
    return web.fetch(url, accept=accept, bytes_max=_BYTES_MAX, seconds_max=_SECONDS_MAX)
