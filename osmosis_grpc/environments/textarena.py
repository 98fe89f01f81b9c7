"""The games of TextArena. Needs the extra `textarena`.

The name is the name of a game, such as GuessTheNumber-v0. A task is a seed. The options are `tasks`, `seed`, `players`,
and the arguments of the game. The policy plays every player. Player 0 is the sample `main`, and the others are
`player-1` and so on. Each has its own conversation and its own reward.

A conversation only grows: each turn adds what the game has told the player since the player's last turn, in the format
in which TextArena shows it to models. A game's wrappers are used if they change actions, but not if they rewrite the
whole observation.
"""

from functools import partial
from typing import Any

from osmosis_grpc.environments.environment import SeededEnvironment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.own_randomness import OwnRandomness
from osmosis_grpc.environments.port import EnvironmentFault, EnvironmentTask, Score
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.protocol.errors import MissingExtraError

try:
    import textarena as ta
    from textarena.agents.basic_agents import STANDARD_GAME_PROMPT
    from textarena.envs.registration import ENV_REGISTRY
except ImportError as error:
    raise MissingExtraError("an environment of TextArena", "textarena") from error

__all__ = ["TextArena"]

MOST_PLAYERS = 15


class TextArena(SeededEnvironment):
    """One game of TextArena."""

    distribution = "textarena"
    opening = ({"role": "system", "content": STANDARD_GAME_PROMPT},)

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        players = int(self.number("players", 0))
        if spec.name not in ENV_REGISTRY:
            raise ValueError(f"TextArena has no game {spec.name!r}")
        self._players = players or self._fewest_players()
        try:
            OwnRandomness(0).call(self._begun, self._players, 0)
        except Exception as error:
            raise ValueError(f"{self.name}: the game cannot begin: {error or type(error).__name__}") from error

    def _begun(self, players: int, seed: int) -> Any:
        game = ta.make(self.spec.name, **self.options)
        game.reset(num_players=players, seed=seed)
        return game

    def _fewest_players(self) -> int:
        for players in range(1, MOST_PLAYERS + 1):
            try:
                OwnRandomness(0).call(self._begun, players, 0)
            except AssertionError:  # the game needs another number of players
                continue
            except Exception:
                break
            return players
        return 1

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Play a game to its end."""
        call = partial(episode.call, OwnRandomness(task.data).call)
        game = await call(self._begun, self._players, task.data)
        done = False
        while not done:
            player, news = await call(_news, game)
            sample = f"player-{player}" if player else "main"
            reply = await episode.ask(news, sample=sample)
            done, _ = await call(game.step, action=str(reply.content or ""))
        rewards, info = await call(game.close)
        if not isinstance(rewards, dict):
            raise EnvironmentFault(f"its rewards are {rewards!r:.80}, not those of the players")
        facts = {"game_info": {str(player): facts for player, facts in info.items()}}
        if self._players == 1:
            own = info.get(0, {})
            parts = {key: own[key] for key in ("turn_count", "invalid_move") if key in own}
            return Score(reward=rewards.get(0), parts=parts, facts=facts)
        samples = {f"player-{player}" if player else "main": reward for player, reward in rewards.items()}
        return Score(samples={name: samples[name] for name in samples if name in episode.conversations}, facts=facts)


def _news(game: Any) -> tuple[int, str]:
    """Return the player whose turn it is, and the messages that are new to the player, without the player's own."""
    inner = game
    while isinstance(inner, ta.core.Wrapper):
        inner = inner.env
    player, observations = inner.get_observation()
    names = {ta.GAME_ID: "GAME", **inner.state.role_mapping}
    heard = [
        f"[{names.get(sender, f'Player {sender}')}] {text}"
        for sender, text, kind in observations
        if sender != player or kind is not ta.ObservationType.PLAYER_ACTION
    ]
    return player, "\n".join(heard) or "[GAME] It is your turn."
