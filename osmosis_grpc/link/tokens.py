"""Bearer tokens: which ones a server accepts, and whose they are.

Kept as SHA-256 digests and compared in constant time. No grpc in this file: the HTTP gateway
asks the same tokens.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

from osmosis_grpc.link.callback_credentials import CallbackKeys

_NAMED = re.compile(r"([A-Za-z0-9._-]{1,64})=(?!=*$)(.+)")
WRONG = "no credential, or a wrong one: send Authorization: Bearer TOKEN"
"""What everybody hears who shows none that is accepted; the same whatever was shown."""


class Tokens:
    """The tokens that are accepted: SECRET or NAME=SECRET each.

    The name says whose rollouts they are that a token starts. Tokens of one name are one owner's,
    so that it may show a new one and keep its rollouts; tokens without a name are an owner each.
    Raises ValueError for a token that cannot stand in a header.
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
        """What makes credentials for callbacks, of these tokens."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __repr__(self) -> str:
        return f"Tokens({len(self._rows)})"

    def owner(self, header: str) -> str | None:
        """Whose the token in an Authorization header is, told without the token; None for one that is not accepted."""
        digest, found = _digest(bearer(header)), None
        for known, owner in self._rows:  # all of them: when one fits is not to be told by the time it takes
            if hmac.compare_digest(digest, known):
                found = owner
        return found


def bearer(header: str) -> str:
    """The token of an Authorization header, which holds `Bearer TOKEN` or the token alone."""
    return (header[7:] if header[:7].lower() == "bearer " else header).strip()


def check_token(text: str) -> str:
    """Refuse a token that cannot stand in a header; returns it. Raises ValueError, which does not tell it."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("a token is printable ASCII without blanks around it, and not empty")
    return text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
