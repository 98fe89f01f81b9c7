"""The growth of a rollout's bytes with its turns, compared with the size of its arrays.

python -m benchmarks.growth [--mode attach] [--tokens 2048] [--rollouts 64] [--in-flight 64] [--json]

Counts the bytes of rollouts of 8, 32 and 128 turns, both directions, without the connection's handshake.
`array_bytes` is the size of the arrays alone: 8 bytes per sampled token (id and logprob), 4 per id of other messages.
"""

from dataclasses import replace
from typing import Any

from benchmarks.figures import progress
from benchmarks.flight import Work, run_work
from benchmarks.measure import wire_bytes
from benchmarks.processes import server

TURNS = (8, 32, 128)


async def measure(work: Work) -> dict[str, Any]:
    """Measure the bytes per rollout for each number of turns, on one server."""
    runs = [replace(work, turns=turns) for turns in TURNS]
    found = {}
    with server(work.mode, work.in_flight) as started:
        for run in runs:
            progress(f"growth: {run.turns} turns")
            found[run.turns] = await wire_bytes(run, started)
    arrays = {run.turns: run.array_bytes for run in runs}
    return {
        "benchmark": "growth",
        "mode": work.mode,
        "tokens": work.tokens,
        "rollouts": work.rollouts,
        "in_flight": work.in_flight,
        "wire_bytes": found,
        "array_bytes": arrays,
        "times_from_32_to_128_turns": round(found[128] / found[32], 4),
        "times_arrays_at_8_turns": round(found[8] / arrays[8], 4) if work.tokens else None,
    }


if __name__ == "__main__":
    run_work(__doc__, measure, mode="attach", tokens=2048, rollouts=64, without=("turns",))
