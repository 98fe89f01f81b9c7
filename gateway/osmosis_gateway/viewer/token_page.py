"""The page of the tokens of a sample. It loads them in windows (SampleTokens.window) and draws only what it shows."""

import anyio
from fastapi import APIRouter, HTTPException
from starlette.responses import JSONResponse, Response

from osmosis_gateway.viewer.pages import Pages
from osmosis_gateway.viewer.reads import Loaded
from osmosis_gateway.viewer.sample_tokens import WINDOW, SampleTokens, layout, segment_facts, tokens_of
from osmosis_grpc.reading.history import MAIN
from osmosis_grpc.types import Sample
from osmosis_grpc.types.outcome import printable


def router(pages: Pages) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()

    async def load(rollout_id: str, attempt: int, sample: str) -> tuple[Loaded, dict[str, Sample], SampleTokens]:
        loaded = await pages.reads.rollout(rollout_id, attempt)
        samples = loaded.history.samples(loaded.info.outcome)
        if sample not in samples:
            names = ", ".join(samples) or "none"
            raise HTTPException(404, f"sample: rollout {rollout_id} has no sample {sample}; it has {names}")
        return loaded, samples, tokens_of(loaded, sample, samples[sample])

    @routes.get("/rollout/tokens")
    async def show(id: str, attempt: int = 0, sample: str = MAIN) -> Response:  # noqa: A002
        loaded, samples, tokens = await load(id, attempt, sample)
        return pages.page(
            "tokens.html",
            info=loaded.info,
            running=loaded.info.end_time is None,
            key={"id": loaded.info.rollout_id, "attempt": loaded.info.attempt},
            sample=sample,
            samples=samples,
            reason=samples[sample].not_trainable_reason,
            tokens=tokens,
            step=tokens.step,
            about=list(segment_facts(tokens, loaded.history, sample)),
            decoded=pages.texts is not None,
            at="",
        )

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
