"""Reads the names that model servers give their weights."""

from osmosis_grpc.protocol.errors import Unavailable

UNNAMED = "default"
"""What vLLM and SGLang call weights that nobody has named."""
RENAME_RETRY = 5.0
"""While the weights have lost their name, a chat is asked again after this many seconds."""


class WeightNames:
    """Reads the names of one server's weights. `server` is its address."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._last = ""

    def read(self, name: str) -> str:
        """Return the name of the weights; empty if nobody has named them.

        Raises Unavailable if they had a name before: the server was restarted and has loaded the weights from its disk.
        """
        if name and name != UNNAMED:
            self._last = name
            return name
        if self._last and name:
            raise Unavailable(
                f"the weights of the model server {self._server} were named {self._last!r} and have lost their name: "
                "it was restarted and has loaded the weights from its disk. Load the current weights and name them",
                retry_after=RENAME_RETRY,
            )
        return ""
