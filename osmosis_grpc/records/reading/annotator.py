"""Adds annotations to rollouts of a source: on a running server, or in a folder that no server uses."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from osmosis_grpc.protocol.types import Annotation
from osmosis_grpc.records.reading.journal_folder import opened
from osmosis_grpc.records.reading.source_port import Source, SourceError

if TYPE_CHECKING:
    from osmosis_grpc.records.reading.folder_source import FolderSource
    from osmosis_grpc.records.reading.journal_source import JournalSource


class Annotator(Protocol):
    """An object that adds annotations."""

    async def annotate(self, rollout_id: str, attempt: int, annotation: Annotation) -> bool:
        """Add an annotation to an ended rollout. Return False if it is already there. Raises SourceError."""


@asynccontextmanager
async def open_annotator(source: Source) -> AsyncIterator[Annotator]:
    """Yield the Annotator for a source. Raises SourceError if another process uses the source's folder."""
    from osmosis_grpc.records.reading.folder_source import FolderSource

    if isinstance(source, FolderSource):
        async with AsyncExitStack() as stack:
            annotators = {
                journal: await stack.enter_async_context(_in_folder(journal.folder))
                for journal in source.journals().values()
            }
            stack.enter_context(source.snapshot())
            yield _InFolders(source, annotators)
        return
    from osmosis_grpc.records.reading.server_source import ServerSource

    assert isinstance(source, ServerSource)
    yield source


class _InFolders:
    def __init__(self, source: "FolderSource", annotators: "Mapping[JournalSource, Annotator]") -> None:
        self._source = source
        self._annotators = annotators

    async def annotate(self, rollout_id: str, attempt: int, annotation: Annotation) -> bool:
        """See Annotator."""
        return await self._annotators[self._source.holder(rollout_id, attempt)].annotate(
            rollout_id, attempt, annotation
        )


@asynccontextmanager
async def _in_folder(folder: Path) -> AsyncIterator[Annotator]:
    """Open the journal in a folder, with an engine that hosts no agents and deletes no rollouts."""
    from osmosis_grpc.engine import Engine, EngineConfig
    from osmosis_grpc.protocol.errors import CallError, NotFound
    from osmosis_grpc.storage import JournalError, SqliteJournal
    from osmosis_grpc.storage.journal.schema import BUDGET, KEPT
    from osmosis_grpc.supervise import Supervisor

    class InFolder:
        async def annotate(self, rollout_id: str, attempt: int, annotation: Annotation) -> bool:
            """See Annotator."""
            owners = [entry.owner for entry in journal.find(rollout_id) if entry.init.request.attempt == attempt]
            try:
                _, added = await engine.annotations.add(owners[0] if owners else "", rollout_id, attempt, annotation)
            except NotFound:
                raise SourceError("its outcome is not delivered yet, so only its running server can be asked") from None
            except CallError as error:
                raise SourceError(str(error)) from None
            return added

    with opened(folder):  # fails if there is no journal, which the engine would create
        pass
    supervisor = Supervisor("the journal")
    async with AsyncExitStack() as stack:
        try:
            journal = SqliteJournal(folder, record_ttl=KEPT, budget=BUDGET, supervisor=supervisor)
        except JournalError as error:
            raise SourceError(f"{error}, or name the server that uses it with --from") from None
        stack.callback(journal.close)
        engine = Engine([], EngineConfig(record_ttl=KEPT, blocked_after=KEPT), journal=journal, supervisor=supervisor)
        await stack.enter_async_context(engine)
        yield InFolder()
