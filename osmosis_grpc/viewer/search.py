"""The page of the search: finds texts in the messages of all rollouts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from osmosis_grpc.protocol.types import RolloutInfo, events
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.history import MAIN, ChatName
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions, pairs_of
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.viewer.pages import Pages, options_in
from osmosis_grpc.viewer.reads import Recent
from osmosis_grpc.viewer.rollouts import MOST_TEXT

MOST_HITS = 100
"""A search ends after this many rollouts with the text."""
SECONDS = 4.0
AROUND = 60
"""How many characters before and after the text a hit shows."""
READ = {True: 5_000, False: 50}
"""How many of the newest rollouts a search reads, for a folder (True) and for a server (False)."""
LASTS = 10.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A rollout with the text."""

    info: RolloutInfo
    sample: str
    turn: int
    role: str
    before: str
    found: str
    after: str
    turns: int

    @property
    def fragment(self) -> str:
        """The fragment of an address that opens the turn."""
        return f"turn={self.turn}" + (f"&sample={self.sample}" if self.sample != MAIN else "")


@dataclass(frozen=True, slots=True)
class Hits:
    """The result of a search."""

    hits: tuple[Hit, ...]
    searched: int
    """The number of rollouts that were read to their end."""


async def search(source: Source, rows: Sequence[RolloutInfo], text: str) -> Hits:
    """Return the rollouts that contain a text, ignoring case. `searched` tells if the search stopped early."""
    found: list[Hit] = []
    until, searched = time.monotonic() + SECONDS, 0
    with source.snapshot() if isinstance(source, FolderSource) else nullcontext():
        for info in rows:
            if len(found) == MOST_HITS or time.monotonic() > until:
                break
            hit = await _hit(source, info, text)
            found += [] if hit is None else [hit]
            searched += 1
    return Hits(tuple(found), searched)


async def _hit(source: Source, info: RolloutInfo, text: str) -> Hit | None:
    first: tuple[ChatName, str, str, int] | None = None
    names: set[ChatName] = set()
    async with aclosing(source.events(info.rollout_id, info.attempt)) as trail:
        async for event in trail:
            for name, message in _messages(event.kind):
                for value in _texts(message):
                    at = value.lower().find(text.lower())
                    if at >= 0:
                        names.add(name)
                        first = first or (name, str(message.get("role", "")), value, at)
                        break
    if first is None:
        return None
    (sample, turn), role, value, at = first
    end = at + len(text)
    around = value[max(0, at - AROUND) : at], value[at:end], value[end : end + AROUND]
    return Hit(info, sample, turn, role, *around, len(names))


def _messages(kind: Any) -> Iterator[tuple[ChatName, Any]]:
    """Yield the new messages of an event, each with the turn that shows it. A tool result is shown with its call."""
    if isinstance(kind, events.ChatRequested):
        for message in kind.messages:
            shown = kind.parent_chat if message.get("role") == "tool" and kind.parent_chat else kind.chat_number
            yield (kind.sample, shown), message
    elif isinstance(kind, events.ChatAnswered):
        yield (kind.sample, kind.chat_number), kind.response.message
    elif isinstance(kind, events.ToolReturned) and kind.message is not None:
        yield (kind.sample or MAIN, max(1, kind.chat_number)), kind.message


def _texts(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if key not in ("role", "type"):
            yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _texts(part, name)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search, and the rollouts that it covers."""

    hits: Hits
    left_out: bool


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    reads = pages.reads
    recent: Recent[Searched] = Recent(4)

    async def read(text: str, options: ListOptions) -> Searched:
        known = recent.get((text, options), lambda it: LASTS)
        if known is not None:
            return known
        listed = await reads.newest(replace(options, limit=READ[reads.is_folder]))
        hits = await reads.run(lambda source: search(source, listed.rows, text))
        found = Searched(hits, listed.cut or hits.searched < len(listed.rows))
        recent.put((text, options), found)
        return found

    @routes.get("/search")
    async def show(request: Request) -> Response:
        text = request.query_params.get("text", "").strip()
        options = options_in(request, 0, ("text",))
        if len(text) > MOST_TEXT:
            raise FilterError("text", f"it has {len(text)} characters; search for at most {MOST_TEXT}")
        found = await read(text, options) if text else None
        filters = [pair for pair in pairs_of(options) if pair[0] != "limit"]
        return pages.page("search.html", text=text, found=found, most=MOST_HITS, filters=filters, at="search")

    return routes
