"""Reads TLS files: checks them at the start, and reads them again when they have changed.

This file does not import grpc, because the HTTP gateway uses the same files.
"""

import base64
import codecs
import hashlib
import logging
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

File = str | Path

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The PEM files of a server with TLS. You can replace the files while the server runs."""

    cert: File
    """The certificate, followed by the intermediate certificates."""
    key: File
    """The certificate's private key, without a pass phrase."""
    client_ca: File | None = None
    """The CAs of callers. If it is given, callers need a certificate that one of these CAs has signed (mTLS)."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files."""
        return (self.cert, self.key, *((self.client_ca,) if self.client_ca else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The PEM files of a client with TLS. They are read for each new channel."""

    ca: File | None = None
    """The CAs that this client trusts to sign the server's certificate. By default, the public CAs."""
    cert: File | None = None
    """The client's certificate, for a server that requires one."""
    key: File | None = None
    """The private key of `cert`, without a pass phrase."""
    server_name: str = ""
    """The name in the server's certificate; by default the host of the address."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: a certificate and its key go together")


@dataclass(frozen=True, slots=True, repr=False)
class Pems:
    """The contents of the files, which are not in the repr."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


class ReloadedFiles(Generic[_T]):
    """A value read from files. When a file has changed, the value is read again. Any thread can use it.

    The constructor raises the errors of `read`. If a later read fails, the error is logged once, and the old value
    stays.
    """

    def __init__(self, files: Sequence[File], read: Callable[[], _T]) -> None:
        self._files = files
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def now(self) -> _T:
        """Return the newest value that was read without an error."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp  # the state before the read, so that the next call notices a change during the read
                try:
                    self._value = self._read()
                    log.info("read %s again", ", ".join(map(str, self._files)))
                except ValueError as error:
                    log.error("%s; the files read before stay in use", error)
            return self._value

    def _look(self) -> list[bytes | None]:
        """Return the digests. Comparing sizes and times would miss a file that was replaced at the same moment."""
        return [_digest(file) for file in self._files]


def _digest(file: File) -> bytes | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None


def read_pems(cert: File | None, key: File | None, ca: File | None) -> Pems:
    """Return the checked contents of the files.

    Raises ValueError for a bad file, and for a key that does not belong to the certificate.
    """
    pems = Pems(*(None if file is None else _bytes(file) for file in (cert, key, ca)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, cert, key, ca)
    if pems.cert is not None:  # gRPC would print lines to stderr for a key of another kind
        body = re.search(rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----(.*?)-----END", pems.cert, re.DOTALL)
        der = base64.b64decode(body[1]) if body else b""
        if not any(bytes.fromhex(kind) in der for kind in _KINDS.values()):
            raise ValueError(f"{cert} has a key of a kind that gRPC does not accept; it accepts {', '.join(_KINDS)}")
    return pems


_KINDS = {
    "RSA": "06092a864886f70d010101",
    "P-256": "06072a8648ce3d020106082a8648ce3d030107",
    "P-384": "06072a8648ce3d020106052b81040022",
    "P-521": "06072a8648ce3d020106052b81040023",
    "Ed25519": "300506032b6570032100",
}
"""The kinds of keys that gRPC accepts, and the DER bytes that identify each kind in a certificate. OpenSSL accepts more
kinds."""


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return an SSL context for a server of the standard library. Each connection uses the newest files.

    With a `client_ca`, the context asks a caller for a certificate and refuses a bad certificate. It accepts a caller
    without a certificate, so the server must check that. Raises ValueError naming a bad file.
    """

    def read() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, tls.cert, tls.key, tls.client_ca)
        if tls.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    files = ReloadedFiles(tls.files, read)

    def newest(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = files.now()

    front = read()
    front.sni_callback = newest  # called for every connection, with or without a name
    return front


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return an SSL context for a client of the standard library. Raises ValueError naming a bad file."""
    context = ssl.create_default_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, tls.cert, tls.key, tls.ca)
    return context


def _load(context: ssl.SSLContext, cert: File | None, key: File | None, ca: File | None) -> None:
    if cert is not None and key is not None:
        try:
            context.load_cert_chain(cert, key, password=_refuse_pass_phrase)
        except (OSError, ValueError) as error:
            raise ValueError(f"{cert} and {key} are not a certificate and its key: {error}") from None
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except OSError as error:
            raise ValueError(f"{ca} has no certificate: {error}") from None


def _refuse_pass_phrase() -> str:
    raise ValueError("the key has a pass phrase")


def _bytes(file: File) -> bytes:
    try:
        return Path(file).read_bytes().removeprefix(codecs.BOM_UTF8)  # gRPC refuses a file with a byte order mark
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
