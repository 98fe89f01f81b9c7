"""The rewards that an agent sets while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from osmosis_grpc.protocol.types import ChatReward, Sample

MAX_COMPONENTS = 64
"""The most names of reward components for a sample, for a chat, or for the whole rollout."""
MAX_NAME_CHARS = 64
"""The most characters of such a name."""

MAX_REWARDS = 16_384
"""The most rewards and components of one rollout. With the longest names, they take less than 5 MiB."""

_Parts = dict[str, float]
"""The rewards of a sample or a chat by the name of the component. The reward itself has an empty name."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The rewards of a rollout that completed."""

    samples: dict[str, Sample]
    """The samples with their rewards."""
    reward: float | None = None
    """The reward of the whole rollout."""
    components: Mapping[str, float] = field(default_factory=dict)


class Rewards:
    """The rewards of one run. A reward that is set again replaces the earlier one."""

    __slots__ = ("_names", "_set")

    def __init__(self) -> None:
        self._set: dict[tuple[str, int, str], float] = {}
        """The rewards by sample, chat number and component, in the order in which they were set."""
        self._names: dict[tuple[str, int], int] = {}

    def set(self, value: float, sample: str, chat: int = 0, name: str = "") -> None:
        """Set a reward. Raises ValueError for a wrong name of a component, and for too many names.

        `sample` is empty for the whole rollout, and `chat` is 0 for a whole sample. `name` is empty for the reward
        itself.
        """
        known = (sample, chat, name) in self._set
        if not known and len(self._set) >= MAX_REWARDS:
            raise ValueError(f"a rollout has at most {MAX_REWARDS} rewards and components")
        if name != "":
            check_name(name)
            names = self._names.get((sample, chat), 0)
            if not known and names >= MAX_COMPONENTS:
                raise ValueError(f"name: {name!r} is too many; a reward has at most {MAX_COMPONENTS} components")
            self._names[sample, chat] = names + (not known)
        self._set.pop((sample, chat, name), None)
        self._set[sample, chat, name] = value

    def grade(self, samples: Mapping[str, Sample]) -> Graded:
        """Return the samples with their rewards, and the rewards of the rollout.

        A single sample and its rollout have the same reward: the one that was set last.
        """
        only = next(iter(samples)) if len(samples) == 1 else ""
        found: dict[str, dict[int, _Parts]] = {}
        for (sample, chat, name), value in self._set.items():
            found.setdefault(sample or only, {}).setdefault(chat, {})[name] = value
        graded = {name: _graded(sample, found.get(name, {})) for name, sample in samples.items()}
        reward, components = _split(found.get(only, {}).get(0, {}))
        return Graded(graded, reward, components)


def check_name(name: object) -> None:
    """Raise ValueError for the name of a component that is not 1 to 64 printable characters."""
    if not isinstance(name, str):
        raise ValueError(f"name: is a {type(name).__name__}, not a str")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"name: has {len(name)} characters, more than {MAX_NAME_CHARS}")
    if not name.isprintable():
        raise ValueError(f"name: {name!r} has a character that cannot be printed")


def _graded(sample: Sample, found: Mapping[int, _Parts]) -> Sample:
    reward, components = _split(found.get(0, {}))
    chats = []
    for number in sorted(found.keys() - {0}):
        own, parts = _split(found[number])
        chats.append(ChatReward(chat_number=number, reward=own, reward_components=parts))
    return replace(sample, reward=reward, reward_components=components, chat_rewards=tuple(chats))


def _split(parts: _Parts) -> tuple[float | None, _Parts]:
    """Return the reward itself, and the named components."""
    return parts.get(""), {name: value for name, value in parts.items() if name}
