"""Asynchronous training: rollouts run while the weights change, and both sides may be killed at any time.

python examples/asynchronous/train.py                               starts an agent server of its own
python examples/asynchronous/train.py 127.0.0.1:50051 --state run1  uses one that serves the speller

500 rollouts, in groups of 5. Each 10 groups make an update of the weights. Started again with the same folder, the
program continues where it ended.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from letters import LENGTH, LETTERS, WORDS, Generator, Tokenizer, Weights, trained

from osmosis_grpc.policies import ChatRenderer, TokenPolicy
from osmosis_grpc.trainer import OutcomeGroup, RolloutRequest, Trainer, advantages, pad, version_lag

GROUPS, GROUP_SIZE, GROUPS_PER_UPDATE = 100, 5, 10
MAX_VERSION_LAG = 2
IN_FLIGHT = 40
TARGET = ("abca", "bdda", "cabd", "dcba", "aacc", "dbdb", "bacd", "ccab")


@dataclass
class Checkpoint:
    """The weights, and the rollouts that they were trained on. One file has both, so they never disagree."""

    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """A part of each rollout id. A server runs an id once, so the ids of a new folder are new."""
    weights: Weights = field(default_factory=lambda: np.zeros((WORDS, LENGTH, LETTERS)))
    updates: list[dict[str, Any]] = field(default_factory=list)
    """For each update: the versions of each rollout's tokens by rollout id, and the mean reward."""

    @property
    def version(self) -> int:
        return len(self.updates)

    @property
    def trained(self) -> set[str]:
        """The ids of the rollouts that were trained on."""
        return {rollout_id for update in self.updates for rollout_id in update["versions"]}

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Return the checkpoint of a file, or a new one, which is saved at once."""
        if not path.exists():
            made = cls()
            made.save(path)
            return made
        kept = json.loads(path.read_text())
        return cls(kept["run"], np.array(kept["weights"]), kept["updates"])

    def save(self, path: Path) -> None:
        """Replace the file at once: a process that is killed leaves the old file or the new one."""
        part = path.with_suffix(".part")
        with part.open("w") as file:
            json.dump({"run": self.run, "weights": self.weights.tolist(), "updates": self.updates}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def updated(checkpoint: Checkpoint, groups: Sequence[OutcomeGroup]) -> Checkpoint:
    """Train on some groups. Returns the next checkpoint. Blocks."""
    batch = pad(groups, advantages=[advantages(group) for group in groups])
    assert (batch.versions[batch.loss_mask] >= 0).all(), "every token has the version of its weights"
    versions = {}
    for outcome in (outcome for group in groups for outcome in group):
        lag = version_lag(outcome, checkpoint.version)
        assert lag is not None
        assert lag <= MAX_VERSION_LAG
        spans = [span for segment in outcome.samples["main"].segments for span in segment.versions]
        versions[outcome.rollout_id] = [[int(span.version), span.tokens] for span in spans]
    update = {"versions": versions, "mean_reward": float(batch.rewards.mean())}
    return Checkpoint(checkpoint.run, trained(checkpoint.weights, batch), [*checkpoint.updates, update])


def requests(run: str) -> list[RolloutRequest]:
    """Each group spells 3 words. Each tenth group spells 8, so its rollouts see several versions."""
    return [
        RolloutRequest(
            rollout_id=f"{run}-g{number}",
            messages=[{"role": "system", "content": "spell"}],
            label=" ".join(TARGET[: 8 if number % 10 == 0 else 3]),
        )
        for number in range(GROUPS)
    ]


async def train(target: str, folder: Path, *, pause: bool) -> None:
    path = folder / "checkpoint.json"
    checkpoint = Checkpoint.load(path)
    generator = Generator(checkpoint.weights, checkpoint.version)
    policy = TokenPolicy(ChatRenderer(Tokenizer()), generator)
    async with Trainer([target], policy, ledger=folder / "ledger") as trainer:
        trainer.resume(version=checkpoint.version)
        left = [request for request in requests(checkpoint.run) if f"{request.rollout_id}-0" not in checkpoint.trained]
        ready: list[OutcomeGroup] = []
        async for group in trainer.groups(
            left, GROUP_SIZE, retries=10, max_in_flight=IN_FLIGHT, max_version_lag=MAX_VERSION_LAG
        ):
            ready.append(group)
            if len(ready) < GROUPS_PER_UPDATE:
                continue
            if pause:
                await trainer.pause(idle=True)  # no reply has tokens of two versions
            checkpoint = await asyncio.to_thread(updated, checkpoint, ready)  # without a pause, rollouts go on
            checkpoint.save(path)  # first the checkpoint, then the confirmations
            generator.load(checkpoint.weights, checkpoint.version)
            trainer.resume(version=checkpoint.version)
            await asyncio.gather(*(each.confirm() for each in ready))
            ready.clear()
            print(
                f"version {checkpoint.version:2}  mean reward {checkpoint.updates[-1]['mean_reward']:.3f}  "
                f"run again as too old {trainer.group_counts.stale}",
                flush=True,
            )
        async for outcome in trainer.unconfirmed():  # an earlier process trained on it and was killed
            assert outcome.rollout_id in checkpoint.trained
            await outcome.confirm()
    print(f"trained on {len(checkpoint.trained)} rollouts in {checkpoint.version} updates")


@contextlib.contextmanager
def agent_server(folder: Path) -> Iterator[str]:
    """Serve the speller in a process of its own. Yields HOST:PORT."""
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "-m", "speller:agent_loop", "--grpc-port", "0"]
    options = ["--no-http", "--json", "--log-level", "warning", "--state-dir", str(folder / "server")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    here = Path(__file__).parent
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=clean, text=True, cwd=here) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline() or sys.exit("the agent server did not start"))["grpc"]
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", help="HOST:PORT of an agent server that serves the speller")
    parser.add_argument("--state", type=Path, help="the folder of the ledger and the checkpoint; default: temporary")
    parser.add_argument("--pause", action="store_true", help="pause the rollouts during an update")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.state or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        target = options.target or stack.enter_context(agent_server(folder.resolve()))
        asyncio.run(train(target, folder, pause=options.pause))


if __name__ == "__main__":
    main()
