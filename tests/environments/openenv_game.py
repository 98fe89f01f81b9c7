"""A game of OpenEnv: guess a number. `python -m tests.environments.openenv_game PORT CLASS` serves it."""

import asyncio
import random
import sys

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from tests.environments.faults import go_wrong


class Guess(Action):
    message: str


class Told(Observation):
    text: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, highest: int = 9):
        super().__init__()
        self._highest = highest

    def reset(self, seed=None, episode_id=None, **options):
        self._goal, self._left = random.Random(seed).randint(0, self._highest), 5
        return Told(text=f"A number from 0 to {self._highest}.")

    def step(self, action: Guess, timeout_s=None, **options) -> Told:
        self._left -= 1
        guess = int(action.message)
        done = guess == self._goal or not self._left
        text = "right" if guess == self._goal else "higher" if guess < self._goal else "lower"
        return Told(text=text, reward=1.0 if guess == self._goal else -0.1, done=done)

    @property
    def state(self):
        return State()


class Wrong(Game):
    """Goes wrong in the way of the argument `how`, its own or that of reset()."""

    def __init__(self, how=""):
        super().__init__()
        self._how = how

    def reset(self, seed=None, episode_id=None, how="", **options):
        self._how = how or self._how
        return super().reset(seed, episode_id, **options)

    def step(self, action: Guess, timeout_s=None, **options) -> Told:
        if self._how == "never_ends":
            return Told(text="again")
        return Told(text="over", reward=go_wrong(self._how), done=True)


class WrongAsync(Wrong):
    async def step_async(self, action, timeout_s=None, **options):
        if self._how == "hangs":
            await asyncio.Event().wait()
        return self.step(action)


def main(port: int, game: type[Game]) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    uvicorn.run(create_fastapi_app(game, Guess, Told, max_concurrent_envs=300), port=port, log_level="error")


if __name__ == "__main__":
    main(int(sys.argv[1]), globals()[sys.argv[2]])
