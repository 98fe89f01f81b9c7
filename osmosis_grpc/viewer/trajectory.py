"""The page of one rollout: its end, its times, and its turns. The body of a turn is loaded when the turn is opened.

The turns of a long rollout are divided into windows. The page loads a window when it becomes visible, and empties it
when it is far from the visible part (static/timeline.js).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import JSONResponse, Response

from osmosis_grpc.records.reading.event_text import failure_text, one_line
from osmosis_grpc.records.reading.history import MAIN, ChatName
from osmosis_grpc.records.reading.message_text import mapping
from osmosis_grpc.records.reading.rollout_record import rollout_record, turn_record
from osmosis_grpc.viewer import turns
from osmosis_grpc.viewer.annotations import fate_of, remarks_of, scores_of
from osmosis_grpc.viewer.images import image as find_image
from osmosis_grpc.viewer.images import parts_of
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages, is_part
from osmosis_grpc.viewer.reads import Loaded

WINDOW = 50
"""How many turns a window has."""
MOST_MESSAGES = 200
"""The most messages of a prompt on the page of one turn."""
SHORT = 12
"""All turns are open from the start if a rollout has at most this many."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the timeline."""

    first: int
    rows: Sequence[turns.TurnRow]
    shown: bool

    @property
    def names(self) -> str:
        """The names of its turns."""
        return " ".join(row.name for row in self.rows)


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    def common(loaded: Loaded) -> dict[str, Any]:
        info = loaded.info
        return {
            "loaded": loaded,
            "info": info,
            "history": loaded.history,
            "key": {"id": info.rollout_id, "attempt": info.attempt},
            "at": "",
            "body_of": lambda row: _body(loaded, (row.sample, row.number)),
            "parts_of": parts_of,
            "alone": False,
            "one_line": one_line,
        }

    def head(loaded: Loaded) -> dict[str, Any]:
        history, outcome = loaded.history, loaded.info.outcome
        return {
            **common(loaded),
            "outcome": outcome,
            "failure": outcome.failure if outcome is not None else None,
            "failing": turns.failing(loaded),
            "split": turns.split(loaded),
            "total": history.times(loaded.end, outcome).total,
            "tools": list(turns.tool_uses(loaded)),
            "samples": history.samples(outcome),
            "fate": fate_of(history),
            "scores": scores_of(history),
            "failure_text": failure_text,
        }

    @routes.get("/rollout")
    async def show(request: Request, id: str, attempt: int = 0) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        rows = turns.rows_of(loaded)
        index = next((at for at, row in enumerate(rows) if row.failing), 0)
        windows = [
            Window(first, rows[first : first + WINDOW], pages.whole or first <= index < first + WINDOW)
            for first in range(0, len(rows), WINDOW)
        ]
        opened = opened_at_first(rows)
        return pages.page(
            "trajectory.html", **head(loaded) | remarks_of(loaded), windows=windows, turns=len(rows), opened=opened
        )

    @routes.get("/rollout/turns")
    async def window(request: Request, id: str, attempt: int = 0, first: int = 0) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        rows = turns.rows_of(loaded)
        part = Window(first, rows[max(0, first) : max(0, first) + WINDOW], True)
        return pages.page("turn_rows.html", **common(loaded), window=part, opened=opened_at_first(rows))

    @routes.get("/turn")
    async def turn(
        request: Request,
        id: str,  # noqa: A002
        turn: int,
        attempt: int = 0,
        sample: str = MAIN,
    ) -> Response:
        loaded = await pages.reads.rollout(id, attempt)
        body = _body(loaded, (sample, turn))
        if is_part(request):
            return pages.page("turn_body.html", **common(loaded), body=body)
        _, tools = await pages.reads.run(lambda source: source.request(loaded.info.rollout_id, loaded.info.attempt))
        names = [str(mapping(each.get("function")).get("name")) for each in tools]
        prompt = {"most_messages": MOST_MESSAGES, "calls_of": turns.calls_of, "tools": names}
        return pages.page("turn.html", **common(loaded) | {"alone": True}, body=body, **prompt)

    @routes.get("/rollout/image")
    async def show_image(id: str, image: str, attempt: int = 0) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        samples = loaded.history.samples(loaded.info.outcome).values()
        others = (message.get("content") for sample in samples for message in sample.messages)
        found = find_image(loaded.history, others, image)
        if found is None:
            raise HTTPException(404, f"rollout {id} has no such image")
        return Response(found[0], media_type=found[1])

    @routes.get("/turn.json")
    async def turn_json(id: str, turn: int, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        chat = _body(loaded, (sample, turn)).chat
        return JSONResponse(turn_record(loaded.info, loaded.history, chat, tokens=False))

    @routes.get("/rollout.json")
    async def rollout_json(id: str, attempt: int = 0) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        samples = loaded.history.samples(loaded.info.outcome)
        as_of = loaded.now if loaded.stopped else None
        return JSONResponse(rollout_record(loaded.info, loaded.history, samples, as_of=as_of, tokens=False))

    @routes.get("/messages.json")
    async def messages_json(id: str, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        loaded = await pages.reads.rollout(id, attempt)
        samples = loaded.history.samples(loaded.info.outcome)
        if sample not in samples:
            raise HTTPException(404, f"rollout {id} has no sample {sample}")
        return JSONResponse(list(samples[sample].messages))

    @routes.get("/rollout/stream")
    async def follow(id: str, attempt: int = 0) -> Response:  # noqa: A002
        def changed(loaded: Loaded) -> list[tuple[str, str]]:
            rows = turns.rows_of(loaded)
            first = max(0, len(rows) - WINDOW)
            part = Window(first, rows[first:], True)
            newest = pages.text("turn_rows.html", **common(loaded), window=part, opened=opened_at_first(rows))
            return [("head", pages.text("trajectory_head.html", **head(loaded))), ("turns", newest)]

        feed = Feed(
            lambda: pages.reads.rollout(id, attempt, fresh=True),
            lambda loaded: (loaded.info.last_event_number, loaded.info.state, loaded.info.undelivered),
            changed,
            lambda loaded: loaded.stopped or (loaded.info.end_time is not None and not loaded.info.undelivered),
        )
        return pages.feeds.stream(("rollout", id, attempt), feed)

    return routes


def opened_at_first(rows: Sequence[turns.TurnRow]) -> set[str]:
    """Return the names of the turns that are open from the start: all of a short rollout, or the one that failed."""
    return {row.name for row in rows if len(rows) <= SHORT or row.failing}


def _body(loaded: Loaded, name: ChatName) -> turns.TurnBody:
    body = turns.body_of(loaded, name)
    if body is None:
        raise HTTPException(404, f"rollout {loaded.info.rollout_id} has no turn {name[1]} of {name[0]}")
    return body
