"""A user's folder: an agent in server.py, trainers in files of their own, a server that outlives them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.ports import quiet_port
from tests.processes import run
from tests.waiting import wait_until

AGENT = """
from helpers import REWARD
from osmosis_grpc.rollout import RolloutAgentLoop


class Greeter(RolloutAgentLoop):
    name = "greeter"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        result = await ctx.chat(messages)
        return ctx.complete([*messages, result.message], reward=REWARD)


agent_loop = Greeter()
"""
HELPERS = "REWARD = {reward}\n"

ATTACHED = """
import asyncio, json, sys
from osmosis_grpc.trainer import ChatResponse, RolloutRequest, TokenBlock, Trainer

chats = 0

async def policy(request):
    global chats
    chats += 1
    message, tokens = {"role": "assistant", "content": "hello"}, TokenBlock.of([7], [-0.5])
    return ChatResponse(message=message, tokens=tokens, prompt_ids=TokenBlock.of([1, 2]).ids)

async def main(target, name, attempt):
    messages = [{"role": "user", "content": "Say hello."}]
    requests = [RolloutRequest(rollout_id=f"{name}-{n}", attempt=attempt, messages=messages) for n in range(4)]
    rewards, earlier = [], []
    async with Trainer([target], policy) as trainer:
        async for outcome in trainer.run(requests, group_size=8, max_in_flight=64):
            rewards.append(outcome.reward)
            if outcome.from_journal is not None:
                earlier.append(outcome.from_journal)
    print(json.dumps({
        "rewards": sorted(set(rewards)), "done": len(rewards), "chats": chats, "earlier": len(earlier),
        "same_process": sorted({e.same_process for e in earlier}), "changed": sorted({e.changed for e in earlier}),
        "changes": sorted({c for e in earlier for c in e.changes}), "ended": max([e.end_time for e in earlier] or [0]),
    }))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
CALLED_BACK = ATTACHED.replace("Trainer([target], policy)", 'Trainer([target], policy, transport="callback")')


def _environment() -> dict[str, str]:
    """A user's: the journal is where it is by default."""
    return {name: value for name, value in os.environ.items() if name != "OSMOSIS_ROLLOUT_SERVER_STATE_DIR"}


class Folder:
    """A folder with an agent, its server, and trainers that run in it. Used as a context manager."""

    def __init__(self, path: Path, *, reward: float = 1.0) -> None:
        self.path = path
        (path / "server.py").write_text(AGENT)
        self.set_reward(reward)
        self._port = str(quiet_port())
        self._stack = ExitStack()
        self._server: subprocess.Popen[str]
        self._log = path / "server.log"

    def __enter__(self) -> "Folder":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def set_reward(self, reward: float) -> None:
        (self.path / "helpers.py").write_text(HELPERS.format(reward=reward))

    def start(self) -> None:
        """Start the server, on its port of before."""
        arguments = ["-m", "server:agent_loop", "--no-validate", "--grpc-port", self._port]
        with self._log.open("a") as log:
            command = [sys.executable, "-B", "-m", "osmosis_grpc.serve", *arguments, "--no-http", "--json"]
            self._server = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.path, env=_environment()
            )
        self._stack.callback(self._end, self._server, signal.SIGKILL)
        ready = self._server.stdout.readline()
        assert ready, self._log.read_text()
        self.address = json.loads(ready)["grpc"]

    def restart(self) -> None:
        """End the server in good order, and start it again."""
        self._end(self._server, signal.SIGTERM)
        self.start()

    def train(self, script: str, name: str = "step1", attempt: int = 1) -> tuple[object, str]:
        """What a trainer's script prints, and what it writes to stderr."""
        (self.path / "train.py").write_text(script)
        done = run("train.py", self.address, name, str(attempt), cwd=self.path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    def server_warns(self, text: str) -> None:
        """Wait for a line in the server's log."""
        wait_until(lambda: text in self.log(), text)

    def log(self) -> str:
        """What the server has logged."""
        return self._log.read_text()

    @staticmethod
    def _end(server: subprocess.Popen, how: signal.Signals) -> None:
        if server.poll() is None:
            server.send_signal(how)
        server.wait()
        server.stdout.close()
