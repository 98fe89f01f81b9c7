"""Shows the labels and notes of a rollout, with a form for new ones. They are annotations by its trainer or by people.

A server stores them with the call Annotate. In a folder that no server uses, the viewer opens the journal while it
writes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from osmosis_grpc.network.http.bounded_json import BodyRefused, Bounds, read_within
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Annotation
from osmosis_grpc.records.reading.annotator import open_annotator
from osmosis_grpc.records.reading.history import History
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Loaded

MOST_BYTES = 256 * 1024
"""The most bytes of a form."""
FORM = Bounds(size=MOST_BYTES, seconds=10.0)


def scores_of(history: History) -> dict[str, float]:
    """Return the newest scores of a rollout by the name of the eval function or grader."""
    notes = [event.annotation for event in history.annotated]
    return {note.score_name: note.reward for note in notes if note.score_name and note.reward is not None}


class Fate(NamedTuple):
    """What the trainer did with a rollout. Each field comes from the newest annotation that sets it."""

    trained: bool | None
    weight_step: str
    dropped: str
    """Why the trainer dropped it; empty if it was not dropped."""
    advantage: float | None
    reward: float | None
    """The corrected reward of the rollout; None without a correction. Scores of eval functions do not count."""
    consumed: float | None
    """The time of the trainer's annotation, in Unix seconds."""


def fate_of(history: History) -> Fate:
    """Return the Fate of a rollout from its annotations."""
    notes = [event.annotation for event in reversed(history.annotated)]

    def newest(value: Callable[[Annotation], Any], default: Any = None) -> Any:
        return next((value(note) for note in notes if value(note) not in (None, "")), default)

    def used(note: Annotation) -> float | None:
        says = note.trained is not None or note.weight_step or note.dropped_reason
        return note.time if says else None

    return Fate(
        trained=newest(lambda note: note.trained),
        weight_step=newest(lambda note: note.weight_step, ""),
        dropped=newest(lambda note: note.dropped_reason, ""),
        advantage=newest(lambda note: note.advantage),
        reward=newest(lambda note: None if note.sample or note.score_name else note.reward),
        consumed=newest(used),
    )


def remarks_of(loaded: Loaded) -> dict[str, Any]:
    """Return the values for the template of labels and notes."""
    notes = [event.annotation for event in loaded.history.annotated]
    ended = loaded.info.end_time is not None and not loaded.info.undelivered
    return {
        "remarks": [note for note in notes if _is_remark(note)],
        "annotates": ended,
        "key": {"id": loaded.info.rollout_id, "attempt": loaded.info.attempt},
    }


def router(pages: Pages) -> APIRouter:
    """Return the routes of labels and notes."""
    routes = APIRouter()

    @routes.post("/rollout/annotate")
    async def annotate(request: Request, id: str, attempt: int) -> Response:  # noqa: A002
        annotation = await _given(request)

        async def add(source: Source) -> bool:
            async with open_annotator(source) as annotator:
                return await annotator.annotate(id, attempt, annotation)

        await pages.reads.rollout(id, attempt)  # raises SourceError if there is none
        await pages.reads.run(add)
        pages.reads.forget(id)
        loaded = await pages.reads.rollout(id, attempt)
        return pages.page("remarks.html", **remarks_of(loaded))

    return routes


async def _given(request: Request) -> Annotation:
    """Return the annotation that a form has. Raises HTTPException if the form is invalid; the message says why."""
    try:
        body = await read_within(request, FORM)
    except BodyRefused as error:
        raise HTTPException(error.status_code, f"{error}; shorten the note, or send the form again") from None
    try:
        given = {name: texts[-1].strip() for name, texts in parse_qs(body.decode(), max_num_fields=16).items()}
    except ValueError:
        raise HTTPException(400, "the form is not UTF-8 text, or has too many fields") from None
    labels = (label.strip() for label in given.get("labels", "").split(","))
    note = given.get("note", "").replace("\r\n", "\n")
    annotation = Annotation(author=given.get("author", ""), labels=tuple(filter(None, labels)), note=note)
    if not _is_remark(annotation):
        raise HTTPException(400, "there is nothing to add; write a label or a note")
    try:
        annotation.check("form")
    except InvalidArgument as error:
        raise HTTPException(400, str(error)) from None
    return annotation


def _is_remark(annotation: Annotation) -> bool:
    return bool(annotation.labels or annotation.note)
