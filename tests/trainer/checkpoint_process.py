"""A training loop with a ledger and checkpoints, which kills itself by SIGKILL where it is told:

python -m tests.trainer.checkpoint_process TARGET FOLDER STEPS [PLACE STEP]

PLACE is "trained" (before the checkpoint is written), "saved" (before its position is confirmed) or "confirmed". Its
weights are a digest of all that it trained on. Each reply has random tokens, so that none is sampled twice alike. It
prints a JSON line for each batch: its step, and a digest of what is in it.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutRequest, Trainer, pad

GROUPS, GROUP_SIZE = 2, 2


def policy(request: ChatRequest) -> ChatResponse:
    return answer(request, os.urandom(8).hex())


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


async def main(target: str, folder: Path, steps: int, place: str = "", at: int = 0) -> None:
    def die(here: str, step: int) -> None:
        if (place, at) == (here, step):
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = folder / "checkpoint.json"
    kept = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "weights": ""}
    async with Trainer([target], policy, ledger=folder / "ledger") as trainer:
        if "position" in kept:
            await trainer.confirm(kept["position"])
        for step in range(kept["step"], steps):
            requests = [
                RolloutRequest(rollout_id=f"{folder.name}-{step}-{n}", messages=[{"role": "user", "content": "Go."}])
                for n in range(GROUPS)
            ]
            groups = sorted([group async for group in trainer.groups(requests, GROUP_SIZE)], key=lambda each: each.id)
            batch = pad(groups, advantages=np.zeros(GROUPS * GROUP_SIZE))
            trained = digest(batch.ids.tobytes(), batch.logprobs.tobytes(), batch.rewards.tobytes())
            print(json.dumps({"step": step, "batch": trained, "weights": kept["weights"]}), flush=True)
            die("trained", step)
            kept = {
                "step": step + 1,
                "weights": digest(kept["weights"].encode(), trained.encode()),
                "position": trainer.position(),
            }
            new = folder / "checkpoint.new"
            new.write_text(json.dumps(kept))
            new.replace(checkpoint)
            die("saved", step)
            await trainer.confirm(kept["position"])
            die("confirmed", step)
        print(json.dumps({"step": steps, "left": [each.rollout_id async for each in trainer.unconfirmed()]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:6])))
