"""The page of the tokens of a sample. It loads them in windows (SampleTokens.window) and draws only what it shows."""

from typing import Any

import anyio
from fastapi import APIRouter, HTTPException
from starlette.responses import JSONResponse, Response

from osmosis_grpc.protocol.types import Sample
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.history import MAIN
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.viewer.live import Feed
from osmosis_grpc.viewer.pages import Pages
from osmosis_grpc.viewer.reads import Loaded
from osmosis_grpc.viewer.sample_tokens import WINDOW, SampleTokens, layout, segment_facts, tokens_of

Found = tuple[Loaded, dict[str, Sample], SampleTokens]


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    async def load(rollout_id: str, attempt: int, sample: str, *, fresh: bool = False) -> Found:
        loaded = await pages.reads.rollout(rollout_id, attempt, fresh=fresh)
        samples = loaded.history.samples(loaded.info.outcome)
        if sample not in samples:
            names = ", ".join(samples) or "none"
            raise HTTPException(404, f"sample: rollout {rollout_id} has no sample {sample}; it has {names}")
        return loaded, samples, tokens_of(loaded, sample, samples[sample])

    def token(number: int) -> str:
        """Return a token for people: its text if it has one, else its id."""
        text = pages.texts.of([number])[0] if pages.texts is not None else ""
        return f'"{printable(text)}"' if text else str(number)

    def values(loaded: Loaded, samples: dict[str, Sample], tokens: SampleTokens, sample: str) -> dict[str, Any]:
        running = loaded.info.end_time is None
        return {
            "info": loaded.info,
            "running": running,
            "live": running and not loaded.stopped,
            "key": {"id": loaded.info.rollout_id, "attempt": loaded.info.attempt},
            "sample": sample,
            "samples": samples,
            "reason": samples[sample].not_trainable_reason,
            "tokens": tokens,
            "step": tokens.step,
            "about": list(segment_facts(tokens, loaded.history, sample)),
            "decoded": pages.texts is not None,
            "token": token,
            "at": "",
        }

    @routes.get("/rollout/tokens")
    async def show(id: str, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        found = values(*await load(id, attempt, sample), sample)
        return pages.page("tokens.html", **found)

    @routes.get("/rollout/tokens/stream")
    async def follow(id: str, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        async def look() -> Found:
            try:
                return await load(id, attempt, sample, fresh=True)
            except HTTPException as error:  # the sample's first chat is not open yet
                raise SourceError(str(error.detail)) from None

        feed = Feed(
            look,
            lambda found: (found[0].info.last_event_number, found[0].info.state),
            lambda found: [("head", pages.text("tokens_head.html", **values(*found, sample)))],
            lambda found: found[0].stopped or found[0].info.end_time is not None,
        )
        return pages.feeds.stream(("tokens", id, attempt, sample), feed)

    @routes.get("/rollout/tokens.json")
    async def about(id: str, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        loaded, _, tokens = await load(id, attempt, sample)
        return JSONResponse(layout(tokens, loaded.history, sample))

    @routes.get("/rollout/tokens.bin")
    async def window(
        id: str,  # noqa: A002
        attempt: int = 0,
        sample: str = MAIN,
        first: int = 0,
        count: int = WINDOW,
    ) -> Response:
        _, _, tokens = await load(id, attempt, sample)
        check(tokens, sample, first, count)
        return Response(tokens.window(first, count), media_type="application/octet-stream")

    @routes.get("/rollout/tokens-text.json")
    async def texts(
        id: str,  # noqa: A002
        attempt: int = 0,
        sample: str = MAIN,
        first: int = 0,
        count: int = WINDOW,
    ) -> Response:
        if pages.texts is None:
            raise HTTPException(404, "the viewer has no tokenizer: osmosis-grpc view --tokenizer FOLDER")
        _, _, tokens = await load(id, attempt, sample)
        check(tokens, sample, first, count)
        found = await anyio.to_thread.run_sync(pages.texts.of, tokens.ids[first : first + count].tolist())
        return JSONResponse([printable(text, keep="\n\t") for text in found])

    def check(tokens: SampleTokens, sample: str, first: int, count: int) -> None:
        if not 0 <= first < len(tokens):
            raise HTTPException(400, f"first: {first} is not the index of a token; sample {sample} has {len(tokens)}")
        if not 1 <= count <= WINDOW:
            raise HTTPException(400, f"count: {count} is not from 1 to {WINDOW}")

    return routes
