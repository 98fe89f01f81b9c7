"""Credentials of callbacks: an agent server shows one to the trainer that it calls back.

A trainer makes one credential for all its callbacks. The owner of that credential can derive one for a single rollout.
RolloutClient derives it before it sends a callback, so an agent server never gets the credential for all rollouts. Both
are deterministic, so equal Inits have equal callbacks. This file does not import grpc.
"""

import hashlib
import hmac
from collections.abc import Iterable

_MADE = "cb1"  # the prefix of our credentials


class CallbackKeys:
    """Makes credentials from secrets, and recognizes them. Another process with the same secrets makes equal ones.

    A credential is cb1.ROLLOUT.SIGNATURE. For all rollouts ROLLOUT is empty, and the signature is made with the key;
    for one rollout it is made with the signature for all.
    """

    __slots__ = ("_signatures",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._signatures = [_sign(_bytes(f"callback {text}"), _MADE) for text in secrets]

    def make(self, rollout_id: str = "") -> str:
        """Returns the credential of the first secret, for one rollout if that is given. Raises ValueError."""
        if not self._signatures:
            raise ValueError("there is no secret to make a credential of")
        made = f"{_MADE}..{self._signatures[0]}"
        return narrowed(made, rollout_id) if rollout_id else made

    def made(self, credential: str) -> bool:
        """Returns whether a credential was made from one of these secrets."""
        mark, shown = _parts(credential)
        good = [
            hmac.compare_digest(_bytes(_sign(_bytes(whole), mark) if mark else whole), _bytes(shown))
            for whole in self._signatures
        ]  # all are compared, so that the time does not depend on the credential
        return any(good)


def narrowed(credential: str, rollout_id: str) -> str:
    """Returns the credential for one rollout. Returns any other credential than ours unchanged."""
    mark, whole = _parts(credential)
    if mark or not whole:
        return credential
    mark = _mark(rollout_id)
    return f"{_MADE}.{mark}.{_sign(_bytes(whole), mark)}"


def is_for(credential: str, rollout_id: str) -> bool:
    """Returns whether a valid credential is for this rollout."""
    mark, _ = _parts(credential)
    return not mark or hmac.compare_digest(_bytes(mark), _bytes(_mark(rollout_id)))


def _parts(credential: str) -> tuple[str, str]:
    """Returns the mark of the rollout and the signature; both are empty for any other credential than ours."""
    parts = credential.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == _MADE else ("", "")


def _mark(rollout_id: str) -> str:
    return hashlib.sha256(_bytes(rollout_id)).hexdigest()[:32]


def _sign(key: bytes, body: str) -> str:
    return hmac.new(key, _bytes(body), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
