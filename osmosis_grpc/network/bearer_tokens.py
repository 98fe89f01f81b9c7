"""The bearer tokens that a server accepts, and the owner of each token.

Tokens keeps only their SHA-256 digests, and compares digests in constant time. This file does not import grpc, because
the HTTP gateway accepts the same tokens.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

from osmosis_grpc.network.callback_credentials import CallbackKeys

_NAMED = re.compile(r"([A-Za-z0-9._-]{1,64})=(?!=*$)(.+)")
WRONG = "no credential, or a wrong one: send Authorization: Bearer TOKEN"
"""The answer to every caller without an accepted token. It does not depend on the caller's token."""


class Tokens:
    """The accepted tokens. Each token has the form SECRET or NAME=SECRET.

    NAME is the owner of all rollouts that the token starts. Two tokens with the same name have the same owner, so an
    owner can change its token and keep its rollouts. A token without a name has an owner of its own. Raises ValueError
    for a token that cannot be sent in a header.
    """

    __slots__ = ("_rows", "callbacks")

    def __init__(self, tokens: str | Iterable[str] = ()) -> None:
        self._rows: list[tuple[bytes, str]] = []
        secrets: list[str] = []
        for text in [tokens] if isinstance(tokens, str) else tokens:
            named = _NAMED.fullmatch(text)
            name, secret = (named[1], named[2]) if named else ("", text)
            check_token(secret)
            digest = _digest(secret)
            self._rows.append((digest, f"token:{name or digest.hex()[:16]}"))
            secrets.append(secret)
        self.callbacks = CallbackKeys(secrets)
        """Make credentials for callbacks from these tokens."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __repr__(self) -> str:
        return f"Tokens({len(self._rows)})"

    def owner(self, header: str) -> str | None:
        """Return the owner of the token in an Authorization header; None for a token that is not accepted."""
        digest, found = _digest(bearer(header)), None
        for known, owner in self._rows:  # every digest is compared, so that the time does not depend on the token
            if hmac.compare_digest(digest, known):
                found = owner
        return found


def bearer(header: str) -> str:
    """Return the token of an Authorization header. The header is `Bearer TOKEN` or TOKEN."""
    return (header[7:] if header[:7].lower() == "bearer " else header).strip()


def check_token(text: str) -> str:
    """Return the token. Raises ValueError if it cannot be sent in a header. The error does not contain the token."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("a token is printable ASCII without blanks around it, and not empty")
    return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
