"""What both control clients of vLLM do alike: modes of a pause, names of weights, and an update of the weights."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from osmosis_grpc.policies.generation import UNNAMED
from osmosis_grpc.protocol.errors import InvalidArgument


class PauseMode(StrEnum):
    """What a pause does with requests that are open."""

    ABORT = "abort"
    """They end at once. TokenPolicy asks again for the rest of each reply, with the tokens that were sampled."""
    WAIT = "wait"
    """They are answered first."""
    KEEP = "keep"
    """They stand still, and go on with the new weights."""


class WeightControl(ABC):
    """A client that pauses an engine and names its weights."""

    @abstractmethod
    async def pause(self, mode: PauseMode = PauseMode.ABORT, *, clear_cache: bool = True) -> None:
        """Stop the sampling."""

    @abstractmethod
    async def resume(self) -> None:
        """Continue the sampling."""

    @abstractmethod
    async def set_weight_version(self, version: str) -> None:
        """Name the weights."""

    @asynccontextmanager
    async def updating(self, version: str, mode: PauseMode = PauseMode.ABORT) -> AsyncIterator[None]:
        """Pause, run the body, which loads the weights, name them, and resume.

        If the body fails, vLLM stays paused, because its weights may be half old and half new.

        Args:
            version: The name of the new weights.
            mode: What becomes of open requests.
        """
        await self.pause(mode)
        yield
        await self.set_weight_version(version)
        await self.resume()


def checked_version(version: str) -> str:
    """Return the name of weights. Raises InvalidArgument for the name that means that they have none."""
    if version in ("", UNNAMED):
        raise InvalidArgument("version", f"{version!r} means that nobody has named the weights; use another name")
    return version
