"""The TLS settings of a server, and how a certificate gets into them."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from fairlead.webhook.certificates import BadCertificate, Pair, check_pair


def server_context() -> ssl.SSLContext:
    """Return settings without a certificate: handshakes fail until `load_pair`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_pair(context: ssl.SSLContext, pair: Pair) -> None:
    """Show this certificate in handshakes from now on; BadCertificate, and the old one stays."""
    check_pair(pair)
    # A context can be given a certificate by way of files only. They are the process's own
    # (0700), and gone after a moment.
    with tempfile.TemporaryDirectory(prefix="fairlead-") as directory:
        certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        try:
            server_context().load_cert_chain(certificate, key)  # on trial
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise BadCertificate(f"not usable for TLS: {error}") from error
