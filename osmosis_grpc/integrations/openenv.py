"""Sessions of OpenEnv whose agent runs on an agent server. Needs the extra `openenv`.

    with OsmosisSessionFactory(["127.0.0.1:50051"], policy) as factory:
        session = factory.create({"prompt": "What is 2 + 3?", "answer": "5"})
        session.wait_for_completion()
        trace, reward = session.fetch_training_trace(), session.verify([]).env_reward

A session is a TrainableSession of OpenEnv, which runs its own loop: the agent and its tools run on the server, and the
policy answers the chats in this process. Each chat is a turn of the training trace, with its exact prompt and reply.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, MissingExtraError
from osmosis_grpc.protocol.types import Message, OutcomeStatus
from osmosis_grpc.protocol.types.json_values import text_of
from osmosis_grpc.protocol.types.outcome import lacks
from osmosis_grpc.trainer import RolloutOutcome, RolloutRequest, SyncTrainer
from osmosis_grpc.trainer.chats.policy_table import Policies

try:
    from openenv.core.harness import ResourceSession, ResourceSessionFactory, VerifyResult
    from openenv.core.harness.training import TrainingTrace, TrainingTurn
except ImportError as error:
    raise MissingExtraError("OsmosisSessionFactory", "openenv") from error

__all__ = ["OsmosisSession", "OsmosisSessionFactory"]

EXIT_CODES = {OutcomeStatus.COMPLETED: 0, OutcomeStatus.DEADLINE_EXCEEDED: 124}
"""The exit codes of a session; 1 for any other status."""

RequestOf = Callable[[Any], Mapping[str, Any]]
"""A function that returns the fields of a RolloutRequest for a task."""


def request_of(task: Any) -> Mapping[str, Any]:
    """Return the fields for a text, for messages, or for a mapping with `prompt` and optionally `answer`."""
    if isinstance(task, Mapping):
        if "prompt" not in task:
            raise InvalidArgument("task", f"has no prompt; its keys are: {', '.join(map(str, task))}")
        label = task.get("answer")
        return {**request_of(task["prompt"]), "label": text_of(label, "label")}
    if isinstance(task, str):
        return {"messages": [{"role": "user", "content": task}]}
    if isinstance(task, Sequence):
        return {"messages": list(task)}
    raise InvalidArgument("task", f"is a {type(task).__name__}; pass request_of= for tasks of your own")


class OsmosisSession(ResourceSession):
    """One rollout. wait_for_completion() runs it."""

    def __init__(self, trainer: SyncTrainer, request: RolloutRequest) -> None:
        self._trainer = trainer
        self._request = request
        self.outcome: RolloutOutcome | None = None
        """The outcome; None until wait_for_completion() has returned."""

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Run the rollout and return its exit code: 0, 124 after `timeout_s` seconds, or 1 for a failure."""
        if self.outcome is None:
            limit = self._request.agent_timeout if timeout_s is None else timeout_s
            (self.outcome,) = self._trainer.run([replace(self._request, agent_timeout=limit)])
        return EXIT_CODES.get(self.outcome.status, 1)

    def fetch_training_trace(self) -> TrainingTrace:
        """Return a turn for each chat, in the order of the samples.

        The mask is 1 for the sampled tokens of trainable samples, except in replies that the agent dropped. The
        metadata of a turn contains the sample's `cut`. If the rollout failed or has no reward, there are no turns.
        Raises FailedPrecondition before the end of the rollout.
        """
        outcome = self._ended()
        trainable = outcome.trainable_samples()
        return TrainingTrace(turns=list(_turns(outcome)) if trainable else [])

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Return the reward of the outcome; None if the rollout failed or has no reward.

        Args:
            transcript: Not used.
            final_state: Not used.
        """
        outcome = self._ended()
        completed = outcome.status is OutcomeStatus.COMPLETED
        return VerifyResult(
            env_reward=outcome.mean_reward if completed else None,
            done=True,
            metrics=dict(outcome.reward_components),
            artifacts={
                "rollout_id": outcome.rollout_id,
                "status": outcome.status.value,
                "not_trainable_reason": outcome.not_trainable_reason,
                "messages": list(outcome.messages),
            },
        )

    def initial_messages(self) -> list[Message]:
        """Return the messages of the request."""
        return list(self._request.messages)

    def list_tools(self) -> list[Any]:
        """Return no tools: those of the agent run on the agent server."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raise KeyError: see list_tools().

        Args:
            name: The name of a tool.
            arguments: Its arguments.
        """
        raise KeyError(f"the session has no tool {name}; the tools of the agent run on the agent server")

    def close(self) -> None:
        """Do nothing: a rollout that has ended holds no resources here."""

    def _ended(self) -> RolloutOutcome:
        if self.outcome is None:
            raise FailedPrecondition("the rollout has not ended; call wait_for_completion() first")
        return self.outcome


class OsmosisSessionFactory(ResourceSessionFactory):
    """Creates sessions on agent servers. Any number of threads may run sessions.

    The first session connects to the servers. close(), or the end of a `with` block, ends the connections.

    Args:
        servers: The agent servers, each HOST:PORT.
        policy: Answers the chats.
        request_of: Returns the fields of a RolloutRequest for a task. The default accepts a text, messages, or a
            mapping with `prompt` and optionally `answer`.
        **options: The options of Trainer.
    """

    def __init__(
        self, servers: str | Sequence[str], policy: Policies, *, request_of: RequestOf = request_of, **options: Any
    ) -> None:
        self._make: Callable[[], SyncTrainer] = partial(SyncTrainer, servers, policy, **options)
        self._request_of = request_of
        self._trainer: SyncTrainer | None = None
        self._opening = threading.Lock()

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> OsmosisSession:
        """Return a session. Each one is a rollout with a new id, so an episode id may be used again.

        Args:
            task: The argument of `request_of`.
            seed: The sampling parameter `seed`.
            episode_id: A part of the rollout's id.

        Raises:
            Unavailable: No agent server can be reached.
            InvalidArgument: The task has no prompt.
        """
        name = "-".join(filter(None, ["openenv", episode_id, uuid.uuid4().hex]))
        params = {} if seed is None else {"completion_params": {"seed": seed}}
        fields: dict[str, Any] = {"rollout_id": name, **params, **self._request_of(task)}
        return OsmosisSession(self._opened(), RolloutRequest(**fields))

    def close(self) -> None:
        """End the connections to the servers. Idempotent."""
        with self._opening:
            trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()

    def __enter__(self) -> "OsmosisSessionFactory":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _opened(self) -> SyncTrainer:
        with self._opening:
            if self._trainer is None:
                trainer = self._make().open()
                try:
                    trainer.wait_for_server()
                except BaseException:
                    trainer.close()
                    raise
                self._trainer = trainer
            return self._trainer


def _turns(outcome: RolloutOutcome) -> Iterator[TrainingTurn]:
    for name, sample in outcome.samples.items():
        dropped = sample.dropped_chats
        trainable = not lacks(sample) and outcome.reward_of(name) is not None
        for chat in sample.chats:
            if chat.prompt_ids is None or chat.tokens is None or not chat.tokens.complete:
                continue
            ids, logprobs = chat.tokens.ids.tolist(), chat.tokens.logprobs
            trained = int(trainable and chat.chat_number not in dropped)
            numbers = {"chat_number": chat.chat_number, "parent_chat": chat.parent_chat}
            yield TrainingTurn(
                node_id=f"{outcome.rollout_id}/{name}/{chat.chat_number}",
                prompt_token_ids=chat.prompt_ids.tolist(),
                completion_token_ids=ids,
                per_token_logps=[] if logprobs is None else logprobs.tolist(),
                loss_mask=[0] * len(chat.prompt_ids) + [trained] * len(ids),
                metadata={"sample": name, **numbers, "cut": sample.cut, "dropped": chat.chat_number in dropped},
            )
