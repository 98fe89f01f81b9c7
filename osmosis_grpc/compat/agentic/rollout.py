"""AgenticRollout runs rollouts of an agent with an LLM function: one rollout, a batch, or a stream of steps."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from osmosis_grpc.compat.agentic.agent_registry import make_agent
from osmosis_grpc.compat.agentic.base_agent import BaseAgent
from osmosis_grpc.compat.agentic.config import AgenticRolloutConfig, log_level, save_trajectories
from osmosis_grpc.compat.agentic.episode import make_interactions
from osmosis_grpc.compat.agentic.files import TrajectoryFile, TrajectorySaveError, save_path
from osmosis_grpc.compat.agentic.llm import LLMFunction
from osmosis_grpc.compat.agentic.local_engine import LocalEngine, StepStream, check_request
from osmosis_grpc.compat.agentic.tools import MakeSandbox
from osmosis_grpc.compat.agentic.trajectory import StopReason, Trajectory
from osmosis_grpc.compat.agentic.verl_batch import data_proto, is_data_proto
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisRolloutError
from osmosis_grpc.protocol.types.outcome import with_type
from osmosis_grpc.supervise import SYSTEM, DaemonThreads, OnFailure, child, job

Tools = Mapping[str, Any] | Iterable[Any]
ROLLOUT = job("agentic.rollout", OnFailure.RAISE)

_disk = DaemonThreads(1, name="saved trajectories")


class AgenticRollout:
    """Runs rollouts of the agent that a configuration describes.

    `llm_generate_func` answers the chats, see LLMFunction. `tools` are further tools. `sandbox` makes the sandbox of
    each rollout, by default a LocalSandbox. `tokenizer` only gives the `pad_token_id` of a DataProto: tokens come from
    the model, and no text is tokenized.

    Raises InvalidArgument, which names the argument or the field of the configuration.
    """

    def __init__(
        self,
        config: AgenticRolloutConfig,
        llm_generate_func: LLMFunction,
        tokenizer: Any = None,
        *,
        tools: Tools = (),
        sandbox: MakeSandbox | None = None,
    ) -> None:
        if not isinstance(config, AgenticRolloutConfig):
            made = "make one with AgenticRolloutConfig(...), or with AgenticRolloutConfig.from_dict(...)"
            raise InvalidArgument("config", f"is a {type(config).__name__}, not an AgenticRolloutConfig; {made}")
        if not callable(llm_generate_func):
            why = "is not callable; pass a function of messages, or OpenAIFunction(...)"
            raise InvalidArgument("llm_generate_func", f"{llm_generate_func!r:.80} {why}")
        self.config, self._llm, self._tokenizer = config, llm_generate_func, tokenizer
        of_the_config = {
            "max_steps": config.max_steps,
            "max_tokens_per_step": config.max_tokens_per_step,
            "temperature": config.temperature,
            "tools_config": config.tools_config,
        }
        self.agent: BaseAgent = make_agent(config.agent_type, of_the_config, config.agent_options)
        """The agent that runs the rollouts."""
        self._tools: Tools = {}
        if tools:
            self.tools = tools
        if sandbox is not None:
            self.agent.make_sandbox = sandbox
        self.agent.set_interactions(make_interactions(config.interactions_config))
        saves = save_trajectories(config.save_trajectories)
        level = log_level()
        if level is not None:
            logging.getLogger("osmosis_grpc").setLevel(level)
        self._file = TrajectoryFile(save_path(config.trajectory_save_path)) if saves else None
        self.agent.on_trajectory = self._save

    @property
    def tools(self) -> Tools:
        """The tools that were passed or assigned here. Assigning them calls the agent's set_tools()."""
        return self._tools

    @tools.setter
    def tools(self, tools: Tools) -> None:
        self.agent.set_tools(tools)
        self._tools = tools

    async def run(self, prompt: Any, request_id: str = "", **request: Any) -> Trajectory:
        """Run one rollout and return its trajectory. A failed rollout has a stop reason and an error.

        `request` are further fields of RolloutRequest, such as `label`, `metadata`, `agent_timeout` in seconds, and
        `max_tokens_total`. Raises InvalidArgument for a wrong prompt or field, and TrajectorySaveError.
        """
        async with LocalEngine(self.agent, self._llm) as engine:
            trajectory = await engine.run(prompt, request_id, **request)
        await self._save(trajectory)
        return trajectory

    def stream(self, prompt: Any, request_id: str = "", **request: Any) -> StepStream:
        """Return a rollout that yields its steps while it runs.

        If the agent implements run_trajectory(), its own steps exist only at the end. Until then, the stream yields
        steps made from its chats and tool calls.
        """
        engine = LocalEngine(self.agent, self._llm)
        return StepStream(engine, prompt, request_id or f"agentic-{SYSTEM.new_id()}", request, self._save)

    async def run_batch(self, prompts: Iterable[Any], **request: Any) -> list[Trajectory]:
        """Run a rollout for each prompt, and return the trajectories in the order of the prompts. See batches().

        A slow rollout does not delay the others, because all trajectories are kept until the end.
        """
        made: list[Trajectory] = []
        async with aclosing(self._batches(prompts, request, math.inf)) as batches:
            async for batch in batches:
                made += batch
        return made

    def batches(self, prompts: Iterable[Any], **request: Any) -> AsyncGenerator[list[Trajectory]]:
        """Run a rollout for each prompt, at most `concurrent_requests` at once.

        Yields lists of `batch_size` trajectories in the order of the prompts. A rollout that fails, or whose prompt is
        wrong, becomes a trajectory with an error, and the others continue. While a slow rollout delays the next list,
        at most 2 * `concurrent_requests` + `batch_size` rollouts run or wait. Raises TrajectorySaveError after the last
        list if a trajectory could not be saved. Raises InvalidArgument if `prompts` is a single prompt.
        """
        return self._batches(prompts, request, 2 * self.config.concurrent_requests + self.config.batch_size)

    async def _batches(
        self, prompts: Iterable[Any], request: Mapping[str, Any], ahead: float
    ) -> AsyncGenerator[list[Trajectory]]:
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
            raise InvalidArgument("prompts", f"is a {type(prompts).__name__}; pass a list of prompts")
        check_request(request)
        most, size = self.config.concurrent_requests, self.config.batch_size
        running, unfinished = deque[asyncio.Task[Trajectory]](), asyncio.Semaphore(2 * most)
        batch: list[Trajectory] = []
        unsaved: list[TrajectorySaveError] = []

        async def one(engine: LocalEngine, prompt: Any) -> Trajectory:
            request_id = f"agentic-{SYSTEM.new_id()}"
            try:
                trajectory = await engine.run(prompt, request_id, **request)
                await self._save(trajectory)
            except TrajectorySaveError as error:
                unsaved.append(error)
                return error.trajectories[0]
            except OsmosisRolloutError as error:
                return Trajectory(request_id=request_id, stop_reason=StopReason.ERROR, error=with_type(error))
            return trajectory

        async with LocalEngine(self.agent, self._llm, most) as engine:
            try:
                for prompt in prompts:
                    while len(running) >= ahead or (running and running[0].done()):
                        batch.append(await running.popleft())
                        if len(batch) == size:
                            yield batch
                            batch = []
                    await unfinished.acquire()
                    running.append(child(ROLLOUT, one(engine, prompt)))
                    running[-1].add_done_callback(lambda _: unfinished.release())
                while running:
                    batch.append(await running.popleft())
                    if len(batch) == size or not running:
                        yield batch
                        batch = []
                if batch:
                    yield batch
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        if unsaved:
            raise TrajectorySaveError(str(unsaved[0]), [each for error in unsaved for each in error.trajectories])

    async def generate_sequences(self, prompts: Any) -> Any:
        """Run a rollout for each prompt, and return for each its id, response, reward, stop reason and tokens.

        `prompts` is a list of prompts, or an object with `non_tensor_batch["raw_prompt"]`. For verl's DataProto, the
        result is a DataProto, and a rollout without tokens raises InvalidArgument.
        """
        batch = getattr(prompts, "non_tensor_batch", None)
        trajectories = await self.run_batch(batch["raw_prompt"] if batch is not None else prompts)
        if is_data_proto(prompts):
            return data_proto(trajectories, prompts, getattr(self._tokenizer, "pad_token_id", None) or 0)
        return [self._output(trajectory) for trajectory in trajectories]

    def _output(self, made: Trajectory) -> dict[str, Any]:
        output = {
            "request_id": made.request_id,
            "response": made.get_final_response(),
            "reward": made.final_reward,
            "is_completed": made.is_completed,
            "stop_reason": None if made.stop_reason is None else made.stop_reason.value,
            "error": made.error,
            "segments": made.segments,
        }
        return output | ({"trajectory": made.to_dict()} if self.config.include_trajectory_in_output else {})

    async def _save(self, trajectory: Trajectory) -> None:
        file = self._file
        if file is not None:
            await _disk.run(lambda: file.append([trajectory]))


def create_agentic_rollout(config_dict: Mapping[str, Any], **kwargs: Any) -> AgenticRollout:
    """Return an AgenticRollout with the configuration of a dict.

    Args:
        config_dict: The fields of an AgenticRolloutConfig.
        **kwargs: The other arguments of AgenticRollout.

    Raises:
        InvalidArgument: A field or an argument is wrong.
    """
    return AgenticRollout(AgenticRolloutConfig.from_dict(config_dict), **kwargs)
