"""verifiers v1: a harness whose agent calls its interception server, and its train client, which sends token ids.

Its renderer is the one it has for Qwen3, and for the other model the one for any chat template, with parsers for tool
calls and reasoning. The rows are made as prime-rl makes them from a trace: one for each branch, and what is sampled is
trained in its first branch.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import verifiers.v1 as vf
from renderers import DefaultRendererConfig, Qwen3RendererConfig
from verifiers.v1.configs.agent import AgentConfig, TimeoutConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.task import Task, TaskData

from comparison.adapter import Delivered, Place, Rollout, Row
from comparison.agents import Agents

__all__ = ["ComparisonHarness", "ComparisonHarnessConfig", "open_system"]
sys.modules["comparison_harness"] = sys.modules[__name__]  # harnesses are modules of the top level


class ComparisonHarnessConfig(HarnessConfig):
    """Its settings: none."""


class ComparisonHarness(Harness[ComparisonHarnessConfig]):
    """Has a case run in the process of the agents."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    agents: Agents | None = None

    async def launch(self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, *more: Any) -> ProgramResult:
        """Ask the process of the agents for the case that the task names."""
        cls = type(self)
        cls.agents = cls.agents or Agents(os.environ["COMPARISON_AGENTS"])
        case, key = more[1].name.split("|")
        answer = await cls.agents.run(case=case, key=key, base_url=endpoint, api_key=secret, model=ctx.model)
        return ProgramResult(0 if answer["ok"] else 1, "", answer.get("error", ""))


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Open an agent for each limit of time: the framework cancels a rollout by its own timeout."""
    os.environ["COMPARISON_AGENTS"] = place.agents
    any_template = DefaultRendererConfig(tool_parser="qwen3", reasoning_parser="think")
    renderer = Qwen3RendererConfig() if place.model.endswith("chatml") else any_template
    names: dict[str, Any] = {"api_key_var": "NOKEY", "renderer_model_name": place.model}
    client = vf.TrainClientConfig(base_url=place.engine, renderer=renderer, **names)
    harness = ComparisonHarnessConfig(id="comparison-harness")
    common = {"harness": harness, "runtime": SubprocessConfig(), "client": client, "model": "mock"}
    agents: dict[float, Any] = {}
    async with AsyncExitStack() as stack:

        async def rollout(case: str, key: str, limit: float) -> Delivered:
            if limit not in agents:
                agent = vf.make_agent(AgentConfig(**common, timeout=TimeoutConfig(rollout=limit)))
                agents[limit] = await stack.enter_async_context(agent)
            trace = await agents[limit].run(Task(TaskData(name=f"{case}|{key}", prompt="x")))
            return Delivered(list(_rows(trace)), "; ".join(f"{e.type}: {e.message}"[:200] for e in trace.errors))

        yield rollout


def _rows(trace: Any) -> Iterator[Row]:
    seen: set[int] = set()
    for branch in trace.branches:
        again = [id(node) in seen for node in branch.nodes]
        masks = [[0] * len(node.mask) if old else node.mask for node, old in zip(branch.nodes, again, strict=True)]
        seen |= {id(node) for node in branch.nodes if node.sampled and any(node.mask)}
        mask = [int(x) for part in masks for x in part]
        if any(mask):
            yield Row(list(branch.token_ids), mask, list(branch.logprobs))
