"""A harness for verifiers whose agent runs on an agent server. Needs the extra `verifiers`.

verifiers imports a harness by its id, which is the name of a module. So write a module of two lines:

    # osmosis_agent.py
    from osmosis_grpc.integrations.verifiers import OsmosisHarness
    __all__ = ["OsmosisHarness"]

    agent = vf.Agent(vf.AgentConfig(
        harness={"id": "osmosis_agent", "servers": ["127.0.0.1:50051"]},
        runtime={"type": "subprocess"}, model="my-model", client=vf.TrainClientConfig(base_url=URL),
    ))
    trace = await agent.run(task)

The agent's chats go to the endpoint of verifiers, which samples the replies and records their tokens. The harness reads
the tokens from the trace, so the outcome has the same ids, masks and logprobs. The outcome's reward becomes a reward of
the trace. Replies that must not be trained on, because they were dropped or belong to samples with `train=False`, get
mask False in the trace.
"""

from collections.abc import Sequence
from typing import Any

from osmosis_grpc.integrations._shared_trainer import SharedTrainers
from osmosis_grpc.policies import OpenAIPolicy, Policy
from osmosis_grpc.protocol.errors import CallError, MissingExtraError
from osmosis_grpc.protocol.types import ChatPurpose, Message, OutcomeStatus
from osmosis_grpc.protocol.types.json_values import text_of
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, RolloutRequest, TokenBlock, Trainer

try:
    from pydantic import Field
    from verifiers.v1 import Harness, HarnessConfig, ModelContext, ProgramResult, Runtime, TaskData, Trace
    from verifiers.v1.dialects.chat import message_to_wire
except ImportError as error:
    raise MissingExtraError("OsmosisHarness", "verifiers") from error

__all__ = ["OsmosisHarness"]

REWARD = "agent_server"
"""The name of the outcome's reward in a trace."""
_TRAINERS = SharedTrainers()


class OsmosisHarnessConfig(HarnessConfig):
    """The configuration of OsmosisHarness."""

    servers: list[str] = Field(min_length=1)
    """The agent servers, each HOST:PORT."""
    label: str = "answer"
    """The field of the TaskData that becomes the label of the request, if the task has it."""
    metadata: list[str] = Field(default_factory=list)
    """The fields of the TaskData that become the metadata of the request."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """Fields of every RolloutRequest, for example {"agent_loop": "calculator", "max_turns": 4}."""


class OsmosisHarness(Harness[OsmosisHarnessConfig]):
    """Runs one rollout for each launch. Override make_trainer() to set credentials, for example."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def make_trainer(self, policy: Policy) -> Trainer:
        """Return the Trainer of this process, not yet entered."""
        return Trainer(self.config.servers, policy)

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        """Run a rollout and record its reward, or if it did not complete, its exit code.

        Args:
            ctx: Has the name of the model.
            trace: Receives the rollout's id, reward and masks.
            runtime: Not used: the agent runs on its server.
            endpoint: The URL of verifiers that samples replies.
            secret: The key for the URL.
            mcp_urls: Not used.
            data: The task.
        """
        try:
            trainer = await _TRAINERS.get(tuple(self.config.servers), self.make_trainer)
            async with OpenAIPolicy(endpoint, ctx.model, api_key=secret, token_ids=False, logprobs=False) as policy:
                answer = RecordedPolicy(policy, trace)
                outcome = await trainer.outcome(self._request(trace, data), answer, retries=0)
        except CallError as error:
            return ProgramResult(1, "", str(error))
        trace.info["rollout_id"] = outcome.rollout_id
        if outcome.status is not OutcomeStatus.COMPLETED:
            return ProgramResult(1, "", outcome.not_trainable_reason)
        answer.mask(outcome)
        _record_reward(trace, outcome)
        return ProgramResult(0, "", "")

    def _request(self, trace: Trace, data: TaskData) -> RolloutRequest:
        system, prompt = self.resolve_prompt(data)
        messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        values = data.model_dump(mode="json")
        label = values.get(self.config.label)
        made: dict[str, Any] = {
            "rollout_id": f"verifiers-{trace.id}",
            "messages": messages,
            "label": text_of(label, "label"),
            "metadata": {name: values.get(name) for name in self.config.metadata},
        }
        return RolloutRequest(**{**made, **self.config.fields})


class RecordedPolicy:
    """Asks the endpoint of a rollout, and adds the tokens that verifiers has recorded to its replies."""

    def __init__(self, policy: OpenAIPolicy, trace: Trace) -> None:
        self._policy = policy
        self._trace = trace
        self._nodes: dict[tuple[str, int], int] = {}
        self._judged: set[tuple[str, int]] = set()

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        """Answer a chat."""
        calls = self._trace.calls
        before = len(calls)
        reply = await self._policy(request)
        # Chats of one rollout may overlap, so find the turn of a reply by its message.
        made = [call.node for call in calls[before:] if call.node is not None]
        nodes = [node for node in made if _is_reply(self._trace.nodes[node].message, reply.message)]
        for node in nodes:
            self._nodes[request.sample, request.chat_number] = node
        if request.purpose is ChatPurpose.JUDGE:
            self._judged.add((request.sample, request.chat_number))
        tokens = _tokens(self._trace, nodes[0]) if len(nodes) == 1 else None
        if tokens is None:
            return reply
        prompt, sampled, logprobs = tokens
        return ChatResponse(
            message=reply.message,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            tokens=TokenBlock.of(sampled, logprobs),
            prompt_ids=TokenBlock.of(prompt).ids,
        )

    def mask(self, outcome: RolloutOutcome) -> None:
        """Mask the replies that must not be trained on: of judges, of samples with `train=False`, and dropped ones."""
        left, kept = set[int](), set[int]()
        for (name, number), node in self._nodes.items():
            sample = outcome.samples.get(name)
            dropped = sample is not None and (sample.train is False or number in sample.dropped_chats)
            (left if dropped or (name, number) in self._judged else kept).add(node)
        for node in left - kept:  # equal replies to equal histories share a node
            found = self._trace.nodes[node]
            found.mask, found.logprobs, found.sampling_mask = [False] * len(found.mask), [], None


async def close_trainers() -> None:
    """Close the trainers of the running event loop. Not needed before the process ends."""
    await _TRAINERS.close()


def _record_reward(trace: Trace, outcome: RolloutOutcome) -> None:
    reward = outcome.mean_reward
    if reward is not None:
        trace.record_reward(REWARD, reward)
    trace.record_metrics({f"{REWARD}/{name}": value for name, value in outcome.reward_components.items()})


def _is_reply(recorded: Any, message: Message) -> bool:
    written = message_to_wire(recorded)
    return all((written.get(key) or None) == (message.get(key) or None) for key in ("content", "tool_calls"))


def _tokens(trace: Trace, number: int) -> tuple[list[int], list[int], Sequence[float]] | None:
    """Return the prompt, the sampled tokens and the logprobs of a turn, or None if verifiers recorded no tokens.

    Each node of a trace has the tokens that it adds to its parents'. The sampled ones are at the end of the last node.
    """
    node = trace.nodes[number]
    sampled = sum(node.mask)
    if not sampled or not all(node.mask[-sampled:]) or len(node.logprobs) != sampled:
        return None
    prompt, parent = node.token_ids[:-sampled], node.parent
    while parent is not None:
        prompt, parent = trace.nodes[parent].token_ids + prompt, trace.nodes[parent].parent
    return prompt, node.token_ids[-sampled:], node.logprobs
