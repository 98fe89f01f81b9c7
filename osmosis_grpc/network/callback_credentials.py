"""Callback credentials. An agent server shows such a credential to the trainer that it calls back.

A trainer makes a credential for all rollouts. From it, its owner can derive a credential for a single rollout.
RolloutClient does so before it sends a callback, so an agent server never gets the credential for all rollouts. Both
kinds of credentials are deterministic, so a repeated Init has the same callback. This file does not import grpc.
"""

import hashlib
import hmac
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
        ]  # every signature is compared, so that the time does not depend on the credential
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
