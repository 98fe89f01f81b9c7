"""Shared by both control clients of vLLM: pause modes, names of weights, and weight updates."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from osmosis_grpc.policies.generation import UNNAMED
from osmosis_grpc.protocol.errors import InvalidArgument


class PauseMode(StrEnum):
    """What a pause does with open requests."""

    ABORT = "abort"
    """End them at once. TokenPolicy then requests the rest of each reply."""
    WAIT = "wait"
    """Answer them before pausing."""
    KEEP = "keep"
    """Suspend them, and continue with the new weights."""


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
        """Pause vLLM for the body, which loads new weights, then name them and resume.

        If the body fails, vLLM stays paused, because its weights may be half old and half new.

        Args:
            version: The name of the new weights.
            mode: What to do with open requests.
        """
        await self.pause(mode)
        yield
        await self.set_weight_version(version)
        await self.resume()


def checked_version(version: str) -> str:
    """Return the name of weights. Raises InvalidArgument for the name of unnamed weights."""
    if version in ("", UNNAMED):
        raise InvalidArgument("version", f"{version!r} means that nobody has named the weights; use another name")
    return version
