"""Credentials of callbacks: what an agent server shows a trainer, and for which rollout it is good.

A trainer makes one for all its callbacks. Of that one anybody can make one for a rollout, which is good for that
rollout alone; RolloutClient does so before it sends a callback, so that no agent server gets the first one. Both are
the same each time, so that an equal Init has an equal callback. No grpc here.
"""

import hashlib
import hmac
from collections.abc import Iterable

_MADE = "cb1"  # what begins a credential that was made here


class CallbackKeys:
    """Makes credentials, and knows them again: those of the same secrets in any process, for as long as one is given.

    A credential is cb1.ROLLOUT.SIGNATURE. For all rollouts ROLLOUT is empty, and the signature is made with the key;
    for one rollout it is made with the signature for all.
    """

    __slots__ = ("_signatures",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._signatures = [_sign(_bytes(f"callback {text}"), _MADE) for text in secrets]

    def make(self, rollout_id: str = "") -> str:
        """The credential of the first secret, which it does not show; for one rollout when that is named."""
        if not self._signatures:
            raise ValueError("there is no secret to make a credential of")
        made = f"{_MADE}..{self._signatures[0]}"
        return narrowed(made, rollout_id) if rollout_id else made

    def made(self, credential: str) -> bool:
        """Whether a credential was made of one of these secrets."""
        mark, shown = _parts(credential)
        good = [
            hmac.compare_digest(_bytes(_sign(_bytes(whole), mark) if mark else whole), _bytes(shown))
            for whole in self._signatures
        ]  # all of them: when one fits is not to be told by the time it takes
        return any(good)


def narrowed(credential: str, rollout_id: str) -> str:
    """A credential of a trainer's making as one that is good for one rollout; any other as it is."""
    mark, whole = _parts(credential)
    if mark or not whole:
        return credential
    mark = _mark(rollout_id)
    return f"{_MADE}.{mark}.{_sign(_bytes(whole), mark)}"


def is_for(credential: str, rollout_id: str) -> bool:
    """Whether a credential that is good may speak of this rollout."""
    mark, _ = _parts(credential)
    return not mark or hmac.compare_digest(_bytes(mark), _bytes(_mark(rollout_id)))


def _parts(credential: str) -> tuple[str, str]:
    """The mark of its rollout, and its signature; both empty for what was not made here."""
    parts = credential.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == _MADE else ("", "")


def _mark(rollout_id: str) -> str:
    return hashlib.sha256(_bytes(rollout_id)).hexdigest()[:32]


def _sign(key: bytes, body: str) -> str:
    return hmac.new(key, _bytes(body), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
