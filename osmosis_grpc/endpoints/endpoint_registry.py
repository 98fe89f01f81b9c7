"""Opens the endpoint of each running rollout, and finds it by its key."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.endpoints.key_signatures import RolloutKeys
from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.protocol.errors import NotFound, RolloutEndedError


class Endpoints:
    """The endpoints of a server, by rollout. `address` returns the root URL, such as http://HOST:PORT."""

    def __init__(self, address: Callable[[], str], waits: Waits | None = None) -> None:
        self._address = address
        self._waits = waits or Waits()
        self._keys = RolloutKeys()
        self._open: dict[str, Endpoint] = {}

    @contextmanager
    def open(self, context: RolloutContext, *, limited: bool = False) -> Iterator[Endpoint]:
        """Yield the endpoint of a running rollout. Its key is valid until the end of the block.

        With `limited`, requests beyond the rollout's `max_turns` and `max_tokens_total` are refused.
        """
        key = self._keys.make()
        path = f"/v1/rollouts/{quote(context.request.rollout_id, safe='')}"
        endpoint = Endpoint(context, self._address() + path, key, self._waits, limited=limited)
        self._open[key] = endpoint
        try:
            yield endpoint
        finally:
            del self._open[key]
            endpoint.close()

    def find(self, rollout_id: str, key: str) -> Endpoint:
        """Return the endpoint with a key.

        Raises Unauthenticated if this process did not make the key, RolloutEndedError if the key's rollout has ended,
        and NotFound if the key belongs to another rollout.
        """
        self._keys.check(key)
        endpoint = self._open.get(key)
        if endpoint is None:
            raise RolloutEndedError(f"rollout {rollout_id} has ended")
        if rollout_id != endpoint.rollout_id:
            raise NotFound("the key belongs to another rollout", kind="rollout", name=rollout_id)
        return endpoint
