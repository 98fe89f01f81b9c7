"""Environments without a library: one that counts, and one that goes wrong in every way that its option names."""

import asyncio
import subprocess
import sys
import threading

from osmosis_grpc.environments import EnvironmentSpec, Score
from osmosis_grpc.environments.environment import SeededEnvironment

TURNS = 3


class Counting(SeededEnvironment):
    """Asks TURNS times, and rewards the sum of the numbers that the model says plus the seed."""

    opening = ({"role": "system", "content": "Say a number."},)

    def __init__(self, spec):
        super().__init__(spec)
        self.open = set()
        self.most = 0

    async def play(self, task, episode):
        place = object()
        self.open.add(place)
        self.most = max(self.most, len(self.open))
        episode.close_with(lambda: self.open.remove(place))
        total = task.data
        for turn in range(TURNS):
            reply = await episode.ask(f"turn {turn}")
            total = await episode.call(lambda total, text: total + int(text), total, reply.content)
        return Score(reward=total, parts={"turns": episode.turns}, facts={"seed": task.data})


class Wrong(Counting):
    """Goes wrong in the way of the option `how`."""

    let_go = threading.Event()

    def __init__(self, spec):
        super().__init__(spec)
        self.how = self.options.pop("how")
        self.hanging = set()
        """The rollouts whose call hangs."""

    def hang(self, rollout_id):
        self.hanging.add(rollout_id)
        self.let_go.wait()

    async def play(self, task, episode):
        scored = {"nan": float("nan"), "list": [1.0], "none": None, "text": "1.0", "infinite": float("inf")}
        self.open.add(episode)
        episode.close_with(lambda: self.open.remove(episode))
        await episode.ask("go")
        match self.how:
            case "raises":
                await episode.call(lambda: {}["lost"])
            case "raises_in_the_adapter":
                return Score(reward=[][task.data])
            case "exits":
                await episode.call(sys.exit, 3)
            case "never_ends":
                while True:
                    await episode.ask("again")
            case "hangs":
                await episode.call(self.hang, episode.context.request.rollout_id)
            case "part":
                return Score(reward=1.0, parts={"style": float("nan")})
        return Score(reward=scored[self.how])


class Starting(SeededEnvironment):
    """Starts a process for each episode, and tells the model its id. The reward is the seed."""

    replayable = False  # the id is another one each time

    def started(self, episode):
        process = subprocess.Popen(["sleep", "600"])
        episode.close_with(lambda: (process.kill(), process.wait()))
        return process.pid

    async def play(self, task, episode):
        await episode.ask(str(await episode.call(self.started, episode)))
        return Score(reward=task.data)


class Slow(SeededEnvironment):
    """Waits until it is cancelled, and closes slowly, with a function or an async function."""

    def __init__(self, spec):
        super().__init__(spec)
        self.kind = self.options.pop("kind")
        self.waits = self.closed = False
        self.may, self.may_async = threading.Event(), asyncio.Event()

    def let_go(self):
        self.may.set()
        self.may_async.set()

    def close(self):
        self.may.wait()
        self.closed = True

    async def close_async(self):
        await self.may_async.wait()
        self.closed = True

    async def play(self, task, episode):
        episode.close_with(self.close if self.kind == "function" else self.close_async)
        self.waits = True
        await asyncio.Event().wait()


counting = Counting(EnvironmentSpec("toy", "counting", {"tasks": 10_000}))
hanging = Wrong(EnvironmentSpec("toy", "hanging", {"how": "hangs"}))
starting = Starting(EnvironmentSpec("toy", "starting", {"tasks": 256}))
