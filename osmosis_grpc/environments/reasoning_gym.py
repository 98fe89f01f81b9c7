"""The data sets of reasoning-gym: one question, one answer, one score. Needs the extra `reasoning-gym`.

The name is the name of a data set, such as leg_counting. Options are the fields of its configuration, such as `size`
and `seed`. The default of `seed` is 0, because reasoning-gym would choose another seed each time. `system` names one of
reasoning-gym's system prompts; with an empty value, there is none. As in reasoning-gym's own evaluations, the answer is
the content of the last <answer> in the reply.
"""

from collections.abc import Iterator
from typing import Any

from osmosis_grpc.environments.environment import Environment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import EnvironmentTask, Score, position
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import Message

try:
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer
except ImportError as error:
    raise MissingExtraError("an environment of reasoning-gym", "reasoning-gym") from error

__all__ = ["ReasoningGym"]


class ReasoningGym(Environment):
    """One data set of reasoning-gym."""

    distribution = "reasoning-gym"

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        system = self.options.pop("system", "default")
        if system and system not in SYSTEM_PROMPTS:
            raise ValueError(f"{self.name}: system is {system!r}, not one of {', '.join(SYSTEM_PROMPTS)}")
        self._system: list[Message] = [{"role": "system", "content": SYSTEM_PROMPTS[system]}] if system else []
        if spec.name not in DATASETS:
            raise ValueError(f"reasoning-gym has no data set {spec.name!r}; it has: {', '.join(sorted(DATASETS))}")
        try:
            self._dataset = create_dataset(spec.name, **{"seed": 0, **self.options})
        except Exception as error:  # its checks are assertions
            raise ValueError(f"{self.name}: {error or type(error).__name__}") from error

    def keys(self) -> Iterator[str]:
        """Yield the numbers of the entries."""
        return map(str, range(len(self._dataset)))

    def task(self, key: str) -> EnvironmentTask:
        """Return the task of the entry with this number. Its data is the entry."""
        entry: dict[str, Any] = self._dataset[position(key, len(self._dataset))]
        answer = entry["answer"]
        return EnvironmentTask(
            key=key,
            messages=[*self._system, {"role": "user", "content": entry["question"]}],
            label=None if answer is None else str(answer),
            data=entry,
        )

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Ask once, and score the answer."""
        reply = await episode.ask()
        answer = extract_answer(str(reply.content or ""))
        score = await episode.call(self._dataset.score_answer, answer, task.data)
        return Score(reward=score, parts={"answered": answer is not None}, facts={"answer": answer})
