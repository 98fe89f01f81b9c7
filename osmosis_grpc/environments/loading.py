"""Opens environments by their names. Each kind imports its library when it is first used."""

from collections.abc import Callable, Iterable
from typing import Any

from osmosis_grpc.agent.config_sources import ConfigSources
from osmosis_grpc.agent.loader import LoadError, load_configured
from osmosis_grpc.environments.environment import Environment
from osmosis_grpc.environments.spec import PREFIX, EnvironmentSpec
from osmosis_grpc.protocol.errors import MissingExtraError

Kind = Callable[[EnvironmentSpec], Environment]


def _reasoning_gym(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.reasoning_gym import ReasoningGym

    return ReasoningGym(spec)


def _textarena(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.textarena import TextArena

    return TextArena(spec)


def _gymnasium(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.gymnasium import Gymnasium

    return Gymnasium(spec)


def _verifiers(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.verifiers import Verifiers

    return Verifiers(spec)


def _openenv(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.openenv import OpenEnv

    return OpenEnv(spec)


def _nemo_gym(spec: EnvironmentSpec) -> Environment:
    from osmosis_grpc.environments.nemo_gym import NemoGym

    return NemoGym(spec)


KINDS: dict[str, Kind] = {
    "reasoning-gym": _reasoning_gym,
    "textarena": _textarena,
    "gymnasium": _gymnasium,
    "verifiers": _verifiers,
    "openenv": _openenv,
    "nemo-gym": _nemo_gym,
}
"""The kinds of environments. Each is also the name of its extra."""


def open_environment(text: str | EnvironmentSpec) -> Environment:
    """Open an environment and return it.

    Args:
        text: KIND:NAME[,KEY=VALUE...], or a spec.

    Raises:
        ValueError: There is no such kind or environment, or an option is wrong.
        MissingExtraError: The library of the environment is not installed.
    """
    spec = EnvironmentSpec.parse(text.removeprefix(PREFIX)) if isinstance(text, str) else text
    kind = KINDS.get(spec.kind)
    if kind is None:
        raise ValueError(f"{spec.kind!r} is not a kind of environments; the kinds are: {', '.join(sorted(KINDS))}")
    return kind(spec)


def load_hosted(specs: Iterable[str], sources: ConfigSources | None = None) -> list[Any]:
    """Load the agents with load_configured(), and open an environment for each env:KIND:NAME. Raises LoadError."""
    named = list(specs)
    items = load_configured([each for each in named if not each.startswith(PREFIX)], sources)
    for each in named:
        if each.startswith(PREFIX):
            try:
                items.append(open_environment(each))
            except (ValueError, MissingExtraError) as error:
                raise LoadError(str(error)) from error
    return items
