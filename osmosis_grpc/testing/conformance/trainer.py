"""This project's trainer as a trainer under test: `python -m osmosis_grpc.testing.conformance.trainer`.

docs/conformance.md describes its options, its policy and what it prints.
"""

import argparse
import asyncio
import json
import re
import sys
from typing import Any

import numpy as np

from osmosis_grpc.protocol.errors import Aborted, CallError
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    RolloutOutcome,
    RolloutRequest,
    TokenBlock,
    VersionSpan,
)
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.protobuf_data import code_name
from osmosis_grpc.trainer import Trainer, TrainerConfig
from osmosis_grpc.trainer.transports.callback import link

ROLLOUT = job("testing.conformance.rollout", OnFailure.RAISE)


def say(event: str, **fields: Any) -> None:
    """Print one object on a line."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def policy(chat: ChatRequest) -> ChatResponse:
    """Reply by the rule of docs/conformance.md: echo the newest message, after the wait that it asks for."""
    names = {name: getattr(chat, name) for name in ("rollout_id", "attempt", "sample", "chat_number")}
    say("sampled", **names)
    text = _text(chat.messages[-1]) if chat.messages else ""
    if wait := re.match(r"wait ([\d.]+)", text):
        try:
            await asyncio.sleep(float(wait[1]))
        except asyncio.CancelledError:
            say("stopped", **names)
            raise
    reply = f"echo: {text}"
    known = [] if chat.known_ids is None else list(chat.known_ids)
    new = [1000 + len(_text(message).encode()) for message in chat.messages[chat.prefix_len :]]
    version = re.match(r"version (\S+)", text)
    return ChatResponse(
        message={"role": "assistant", "content": reply},
        versions=(VersionSpan(version[1], 2),) if version else (),
        finish_reason="stop",
        prompt_ids=np.array([*known, *new], dtype="<u4"),
        tokens=TokenBlock.of([chat.chat_number, 2000 + len(reply.encode())], [-0.5, -0.25]),
    )


def _text(message: Any) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def outcome_line(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return an outcome as the fields of a printed line."""
    samples = [
        {
            "name": name,
            "trainable": sample.trainable,
            "segments": [
                {
                    "ids": [int(id_) for id_ in segment.ids],
                    "mask_runs": list(segment.mask_runs),
                    "logprobs": [float(each) for each in segment.logprobs],
                    "chats": list(segment.chats),
                }
                for segment in sample.segments
            ],
        }
        for name, sample in outcome.samples.items()
    ]
    return {
        "rollout_id": outcome.rollout_id,
        "attempt": outcome.attempt,
        "result_id": outcome.result_id,
        "status": str(outcome.status),
        "reward": outcome.reward,
        "samples": samples,
    }


async def run(options: argparse.Namespace) -> int:
    """Run the rollouts, and wait until standard input ends. Return the exit code."""
    callback = options.mode == "callback"
    servers = [options.target] if options.target else []
    config = TrainerConfig(max_open_chats=256, delta=options.history != "full")
    if options.poll is not None:
        link.PING_PERIOD = options.poll
    listen = options.listen or ("127.0.0.1:0" if callback else "")
    trainer = Trainer(servers, policy, transport="callback" if callback else "attach", listen=listen, config=config)
    async with trainer:
        tasks = [child(ROLLOUT, _rollout(trainer, f"{options.prefix}-{n}")) for n in range(1, options.rollouts + 1)]
        codes = await asyncio.gather(*tasks)
        if any(codes):
            return 1
        await asyncio.to_thread(sys.stdin.read)
    return 0


async def _rollout(trainer: Trainer, rollout_id: str) -> int:
    request = RolloutRequest(
        rollout_id=rollout_id, agent_loop="conformance", messages=[{"role": "user", "content": "start"}]
    )
    try:
        outcome = await trainer.rollout(request)
    except Aborted:
        return 1
    except CallError as error:
        say("refused", rollout_id=rollout_id, status=code_name(error.code), reason=error.reason)
    else:
        say("outcome", **outcome_line(outcome))
    return 0


def main() -> int:
    """Parse the options, and run the rollouts."""
    parser = argparse.ArgumentParser(prog="python -m osmosis_grpc.testing.conformance.trainer")
    parser.add_argument("--mode", choices=["callback", "attach", "accept"], required=True)
    parser.add_argument("--target", default="")
    parser.add_argument("--listen", default="")
    parser.add_argument("--rollouts", type=int, default=1)
    parser.add_argument("--prefix", default="rollout")
    parser.add_argument("--history", choices=["full", "delta"])
    parser.add_argument("--poll", type=float)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
