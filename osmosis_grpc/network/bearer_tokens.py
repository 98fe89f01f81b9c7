"""The bearer tokens that a server accepts, the owner of each token, and the credentials for callbacks.

Tokens keeps only their SHA-256 digests, and compares digests in constant time. This file does not import grpc, because
the HTTP gateway accepts the same tokens.

An agent server that calls a trainer back sends a callback credential. The trainer has one credential for all rollouts,
and RolloutClient derives a credential for each rollout from it. So an agent server never gets the credential for all
rollouts. Both kinds are deterministic, so a repeated Init has the same callback.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

_MADE = "cb1"  # the prefix of our credentials


class CallbackKeys:
    """Makes credentials from secrets, and recognizes them. Processes with the same secrets make the same credentials.

    A credential is cb1.ROLLOUT.SIGNATURE. In a credential for all rollouts, ROLLOUT is empty, and the key of
    SIGNATURE is a secret. In a credential for one rollout, ROLLOUT is a digest of the rollout's id, and the key of
    SIGNATURE is the signature for all rollouts.
    """

    __slots__ = ("_signatures",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._signatures = [_sign(_bytes(f"callback {text}"), _MADE) for text in secrets]

    def make(self, rollout_id: str = "") -> str:
        """Return a credential made from the first secret: for all rollouts, or for `rollout_id`.

        Raises ValueError without a secret.
        """
        if not self._signatures:
            raise ValueError("there is no secret to make a credential of")
        made = f"{_MADE}..{self._signatures[0]}"
        return narrowed(made, rollout_id) if rollout_id else made

    def made(self, credential: str) -> bool:
        """Return whether one of these secrets made a credential."""
        mark, shown = _parts(credential)
        good = [
            hmac.compare_digest(_bytes(_sign(_bytes(whole), mark) if mark else whole), _bytes(shown))
            for whole in self._signatures
        ]  # all signatures are compared, so that the time does not depend on the credential
        return any(good)


def narrowed(credential: str, rollout_id: str) -> str:
    """Return the credential for one rollout, derived from the credential for all rollouts.

    Returns any other text unchanged.
    """
    mark, whole = _parts(credential)
    if mark or not whole:
        return credential
    mark = _mark(rollout_id)
    return f"{_MADE}.{mark}.{_sign(_bytes(whole), mark)}"


def is_for(credential: str, rollout_id: str) -> bool:
    """Return whether a valid credential is for this rollout or for all rollouts."""
    mark, _ = _parts(credential)
    return not mark or hmac.compare_digest(_bytes(mark), _bytes(_mark(rollout_id)))


def _parts(credential: str) -> tuple[str, str]:
    """Return ROLLOUT and SIGNATURE of a credential. Both are empty if the text has another form."""
    parts = credential.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == _MADE else ("", "")


def _mark(rollout_id: str) -> str:
    return hashlib.sha256(_bytes(rollout_id)).hexdigest()[:32]


def _sign(key: bytes, body: str) -> str:
    return hmac.new(key, _bytes(body), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


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
