"""Signs and checks the keys of rollouts for programs. A key is recognized even after its rollout has ended."""

import hashlib
import hmac
import secrets

from osmosis_grpc.protocol.errors import Unauthenticated


class RolloutKeys:
    """Makes and checks keys, which are valid only in this process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def make(self) -> str:
        """Return a new key."""
        nonce = secrets.token_hex(16)
        return f"{nonce}.{self._sign(nonce)}"

    def check(self, key: str) -> None:
        """Raise Unauthenticated if the key was not made by make()."""
        nonce, _, signature = key.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(nonce).encode()):
            raise Unauthenticated("the key is not the key of a rollout of this server")

    def _sign(self, nonce: str) -> str:
        return hmac.new(self._secret, nonce.encode(), hashlib.sha256).hexdigest()
