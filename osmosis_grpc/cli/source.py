"""Answers questions about rollouts from a running server or from a server's state folder.

A Source is used as `async with open_source("show", options) as source`. server_source.py and folder_source.py are
imported only when they are used, because a command that reads a folder needs no gRPC.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.cli.state_folder import state_folder, usual_folder
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.types import RolloutFilter, RolloutInfo, TrajectoryEvent

Events = AsyncGenerator[TrajectoryEvent, None]


class Source(ABC):
    """Rollouts and their events. Methods raise SourceError."""

    where: str
    """The server or the folder, for people."""

    async def __aenter__(self) -> "Source":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @abstractmethod
    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """Return at most `limit` rollouts without outcomes, and the token of the next page; empty after the last.

        The rollouts are in the order of acceptance, or with `newest_first` in the reverse order.
        """

    @abstractmethod
    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """Return an attempt of a rollout, the newest by default. After the end, it has its outcome with all tokens."""

    @abstractmethod
    def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """Yield the events of an attempt with numbers above `after`. With `follow`, yield new ones until the last."""

    @abstractmethod
    def all_events(self) -> Events:
        """Yield the new events of all rollouts, without end."""


def open_source(command: str, options: SourceOptions) -> Source:
    """Return the source that the options name. A wrong option ends the command with exit code 2.

    Without --server and --state-dir, the source is the state folder of the settings if it has a journal, else the
    server at 127.0.0.1:50051.
    """
    if options.server is not None and options.state_dir is not None:
        usage_error(command, "--server and --state-dir exclude each other; name one of them")
    folder = None
    if options.state_dir is not None:
        folder = state_folder(command, options.state_dir)
    elif options.server is None:
        usual = usual_folder(command)
        folder = usual if usual is not None and (usual / "journal.db").exists() else None
    if folder is not None:
        from osmosis_grpc.cli.folder_source import FolderSource

        return FolderSource(folder)
    from osmosis_grpc.cli.server_source import server_source

    return server_source(command, options)
