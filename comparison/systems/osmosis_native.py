"""osmosis_grpc, with the agent inside its server: replies come from `ctx.chat` over Attach."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from comparison import agents, cases
from comparison.adapter import Delivered, Place, Rollout, Row, listening, process
from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult
from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.trainer import Trainer


class Native(RolloutAgentLoop):
    """Runs a case of the comparison."""

    name = "native"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """Return no tools: the cases bring their own."""
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Run the case that the metadata names."""
        meta = ctx.request.metadata

        async def chat(messages: list[dict[str, Any]], timeout: float | None = None, **options: Any) -> dict[str, Any]:
            reply = await asyncio.wait_for(ctx.chat(messages, **options), timeout)
            return {"message": dict(reply.message), "finish_reason": reply.finish_reason}

        with Path(os.environ["COMPARISON_LOG"]).open("a") as log:
            agent, ended = None, False
            try:
                agent, ended = await cases.run(meta["case"], meta["key"], chat), True
            except BaseException as error:
                agent = getattr(error, "agent", None)
                raise
            finally:
                agents.record(log, agent, ended)
        return ctx.complete(agent.history, reward=1.0)


native = Native()


@asynccontextmanager
async def open_system(place: Place, loop: str = "osmosis_native:native") -> AsyncIterator[Rollout]:
    """Start a server with the agent, and open a trainer."""
    port, http = str(place.ports[0]), str(place.ports[1])
    where = {"COMPARISON_LOG": place.agents_log, "COMPARISON_AGENTS": place.agents}
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "-m", f"comparison.systems.{loop}"]
    command += ["--grpc-port", port, "--http-port", http, "--max-concurrent", "2000"]
    command += ["--state-dir", f"{place.folder}/state"]
    with process(*command, log=f"{place.folder}/server.log", **where):
        await listening(int(port))
        async with Trainer([f"127.0.0.1:{port}"], OpenAIPolicy(place.engine, "mock")) as trainer:
            name = loop.rpartition(":")[2]

            async def rollout(case: str, key: str, limit: float) -> Delivered:
                run = asyncio.ensure_future(
                    trainer.rollout(rollout_id=key, agent_loop=name, messages=[], metadata={"case": case, "key": key})
                )
                if not (await asyncio.wait([run], timeout=limit))[0]:
                    await trainer.cancel(key)
                outcome = await run
                rows, said = [], [outcome.failure.message] if outcome.failure else []
                for sample in outcome.samples.values():
                    said += [] if sample.trainable else [sample.not_trainable_reason]
                    for segment in sample.segments if sample.trainable else ():
                        versions = [version.version for version in segment.versions if version.tokens]
                        mask = [int(x) for x in segment.mask()]
                        rows.append(Row(segment.ids.tolist(), mask, segment.aligned_logprobs().tolist(), versions))
                return Delivered(rows, "; ".join(said))

            yield rollout
