"""The time to write and read a token block: 4,096 ids with logprobs between NumPy and protobuf.

python -m benchmarks.tokens [--tokens 4096] [--repeat 20000] [--json]

`write_us` is from arrays to a protobuf message, `read_us` from a parsed message to checked arrays. `serialize_us` and
`parse_us` are protobuf's own work in between, and not part of `write_read_us`. To measure another protobuf, run it with
the Python of an environment that has it.
"""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures import machine, run
from benchmarks.policy import made_up_tokens
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2
from osmosis_grpc.protocol.wire.tokens import block_from_wire, block_to_wire

ROUNDS = 9


async def measure(tokens: int, repeat: int) -> dict[str, Any]:
    """Return the microseconds of each call: the best of several rounds, without the noise of other processes."""
    block = made_up_tokens(tokens)
    message = block_to_wire(block)
    data = message.SerializeToString()
    arrived = tokens_pb2.TokenBlock.FromString(data)
    assert block_from_wire(arrived, "block") == block
    calls: dict[str, Callable[[], object]] = {
        "write_us": lambda: block_to_wire(block),
        "read_us": lambda: block_from_wire(arrived, "block"),
        "serialize_us": message.SerializeToString,
        "parse_us": lambda: tokens_pb2.TokenBlock.FromString(data),
    }
    found = {name: round(_microseconds(call, max(1, repeat // ROUNDS)), 3) for name, call in calls.items()}
    found["write_read_us"] = round(found["write_us"] + found["read_us"], 3)
    protobuf = machine()["packages"]["protobuf"]
    return {"benchmark": "tokens", "tokens": tokens, "repeat": repeat, "protobuf": protobuf, **found}


def _microseconds(call: Callable[[], object], repeat: int) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(repeat):
            call()
        rounds.append((time.perf_counter() - began) / repeat * 1e6)
    return min(rounds)


if __name__ == "__main__":
    run(__doc__, measure, tokens=4096, repeat=20_000)
