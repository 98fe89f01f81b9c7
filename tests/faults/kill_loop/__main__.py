"""Kills the server, the trainer or both with SIGKILL, again and again, and judges what came of their rollouts.

python -m tests.faults.kill_loop --kills K --rollouts N --seed S [--who server|trainer|both]
    [--mode attach|callback] [--replies fixed|random] [--in-flight 16] [--workers N] [--folder DIR] [--json]

Server (with its journal) and trainer (with its ledger, where it is killed) are real processes; most kills come at
failpoints of a window each, the others at any time, also before a process is ready. A first run without kills tells
what every rollout has to end with; with random replies a rollout has to end with the replies that its agent was given.
Both runs write histories, and `promises` judges them: a promise that was broken is named with the lines that
show it, and ends the process with 1, as do fewer kills than asked for. `--folder` keeps histories, journal and logs.
With `--workers N` the server has N workers. Three in five kills meet a worker, the others the supervisor and the
trainer in equal parts, and SIGHUPs come between them.
"""

import asyncio
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from tests.faults.kill_loop.agents import CHATS, Traveller
from tests.faults.kill_loop.history import History, Line, read
from tests.faults.kill_loop.promises import RANDOM, Evidence, kept_in
from tests.faults.kill_loop.trainer import agent_loop, digest_of
from tests.faults.kill_loop.victims import Schedule, Victim, Window, start_takes
from tests.faults.kill_loop.workers import Disturber, shares
from tests.ports import quiet_port, quiet_ports

INIT_KEPT = "ledger.init.committed"
"""Over an attachment only: with a callback, the application sends its Inits itself."""
WINDOWS = {
    "server": (
        Window("init.committed", 1),
        Window("chat.open", CHATS),
        Window("result.before", 1),
        Window("result.committed", 1),
        Window("outcome.before", 1),
        Window(RANDOM, 1, share=0.5),
    ),
    "trainer": (
        Window(INIT_KEPT, 1),
        Window("ledger.reply.before", CHATS),
        Window("ledger.reply.committed", CHATS),
        Window("ledger.complete.before", 1),
        Window("ledger.complete.committed", 1),
        Window(RANDOM, 1, share=0.5),
    ),
}
MOST_BREAKS = 5
"""At most this many broken promises are printed."""


async def run(folder: Path, given: Namespace, kills: Mapping[str, int]) -> dict[str, Victim]:
    """One run in a folder of its own, to its end. Returns its processes by name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "history.jsonl"
    history, port = History(path, "supervisor"), quiet_ports(given.workers)
    serve = [
        "-m",
        "osmosis_grpc.serve",
        "-m",
        "tests.faults.kill_loop.agents:agents",
        f"--grpc-port={port}",
        "--no-http",
        "--no-validate",
        f"--workers={given.workers}",
        f"--state-dir={folder / 'state'}",
        f"--max-concurrent={given.in_flight}",
        "--drain-timeout=5",
        "--log-level=warning",
        "--json",
    ]
    train = [
        "-m",
        "tests.faults.kill_loop.trainer",
        *(
            f"--target=127.0.0.1:{each}"
            for each in range(port, port + (given.workers if given.mode == "callback" else 1))
        ),
        f"--rollouts={given.rollouts}",
        f"--in-flight={given.in_flight}",
        f"--replies={given.replies}",
        *([f"--ledger={folder / 'ledger.db'}"] if given.who != "server" else []),
        *([f"--callback={quiet_port()}"] if given.mode == "callback" else []),
    ]
    victims: dict[str, Victim] = {}
    disturber: Disturber | None = None

    seen = {"bytes": 0, "applied": 0}

    def applied() -> int:
        with path.open("rb") as file:
            file.seek(seen["bytes"])
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        seen["bytes"] += len(whole)
        seen["applied"] += whole.count(b'"op": "applied"')
        return seen["applied"]

    def pace() -> float:
        left = sum(max(0, victim.schedule.wanted - victim.schedule.kills) for victim in victims.values())
        left += disturber.missing if disturber is not None else 0
        return (given.rollouts - applied() - 2 * given.in_flight) / max(1, left)

    start = await start_takes() if kills else 0.0
    for who, command in (("server", serve), ("trainer", train)):
        windows = [window for window in WINDOWS[who] if given.mode == "attach" or window.name != INIT_KEPT]
        wanted = 0 if who == "server" and given.workers > 1 else kills.get(who, 0)
        schedule = Schedule(windows, wanted, f"{given.seed} {who}", pace, start)
        victims[who] = Victim(who, command, folder, history, schedule)
    if kills and given.workers > 1:
        disturber = Disturber(victims["server"], history, kills, f"{given.seed} workers", applied, pace)
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        for victim in victims.values():
            stack.callback(victim.kill)
        serving = asyncio.create_task(victims["server"].live(over))
        training = asyncio.create_task(victims["trainer"].live(asyncio.Event()))
        disturbing = asyncio.create_task(disturber.live()) if disturber is not None else None
        limit = 60.0 + 10.0 * sum(kills.values())
        await asyncio.wait({serving, training}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not training.done():
                serving.done() and serving.result()
                raise Broken(f"not over after {limit:g} s: {applied()} of {given.rollouts} applied; see {folder}")
            training.result()
            if disturbing is not None and disturbing.done():
                disturbing.result()
        finally:
            over.set()
            training.cancel()
            if disturbing is not None:
                disturbing.cancel()
        await serving
    return victims


async def measure(given: Namespace, folder: Path) -> dict[str, Any]:
    """Both runs, and the verdict."""
    each = {"server": ("server",), "trainer": ("trainer",), "both": ("server", "trainer")}[given.who]
    kills = {who: (given.kills + place) // len(each) for place, who in enumerate(each)}
    if given.workers > 1:
        kills = shares(given.kills)
    await run(folder / "undisturbed", given, {})
    undisturbed = {line.id: line for line in read(folder / "undisturbed" / "history.jsonl") if line.op == "applied"}
    if len(undisturbed) != given.rollouts or any(row.outcome["status"] != "COMPLETED" for row in undisturbed.values()):
        raise Broken(f"the undisturbed run went wrong; see {folder}")
    began = time.monotonic()
    victims = await run(folder / "killed", given, kills)
    lines = list(read(folder / "killed" / "history.jsonl"))
    replayable = {f"r{index}" for index in range(given.rollouts) if agent_loop(index) == Traveller.name}
    expected = {name: row.outcome["digest"] for name, row in undisturbed.items()}
    if given.replies == "random":
        expected = dict.fromkeys(expected, "") | given_to_agents(lines)
    journal = kept_in(folder / "killed" / "state")
    evidence = Evidence(lines, journal, expected, replayable, workers=given.workers > 1)
    return judged(evidence, kills) | {
        "starts": {who: victim.lives for who, victim in victims.items()},
        "killed_before_ready": victims["server"].early_deaths,
        "kills_by_window": {who: dict(victim.schedule.by_window) for who, victim in victims.items()},
        "seconds": round(time.monotonic() - began, 1),
        "seed": given.seed,
    }


def given_to_agents(lines: list[Line]) -> dict[str, str]:
    """Returns, by rollout, the digest of the draws that its agent was given."""
    draws: dict[str, dict[str, dict[int, str]]] = {}
    for line in lines:
        if line.op == "got":
            sample, number = line.key
            draws.setdefault(line.id, {}).setdefault(sample, {})[number] = line.outcome.split(" ")[-1]
    return {
        name: digest_of(
            {sample: [replies[number] for number in sorted(replies)] for sample, replies in samples.items()}
        )
        for name, samples in draws.items()
    }


def judged(evidence: Evidence, kills: dict[str, int]) -> dict[str, Any]:
    """The figures. Raises Broken, with the promises that were not kept."""
    broken = evidence.broken()
    for found in broken[:MOST_BREAKS]:
        progress(f"BROKEN {found}")
    counts = Counter(found.promise for found in broken)
    ends = [line for lines in evidence.applied.values() for line in lines]
    statuses = Counter(line.outcome["status"] for line in ends)
    runs = Counter(line.id for line in evidence.by_op["run"])
    sampled = Counter((line.id, *line.key) for line in evidence.by_op["sampled"])
    redeliveries = evidence.redeliveries()
    killed = Counter(line.key[0] for line in evidence.kills)
    figures = {
        "kills": dict(killed),
        "hangups": len(evidence.by_op["hangup"]),
        "accepted": len(evidence.journal),
        "delivered": sum(kept.settled for kept in evidence.journal),
        "applied": len(evidence.applied),
        "lost": counts.pop("lost", 0),
        "applied_twice": counts.pop("applied twice", 0),
        "sampled_twice": counts.pop("sampled twice", 0),
        "resampled": sum(n - 1 for n in sampled.values()),
        "other_breaks": dict(counts),
        "completed": statuses["COMPLETED"],
        "failed": statuses["FAILED"],
        "replayable": len(evidence.replayable),
        "replayed": sum(n > 1 for name, n in runs.items() if name in evidence.replayable),
        "replayed_equal": sum(
            line.outcome["digest"] == evidence.expected[line.id] for line in ends if line.id in evidence.replayable
        ),
        "killed_after_third_chat": evidence.killed_after_third_chat(),
        "windows_shown": evidence.windows_shown(),
        "seconds_to_first_redelivery": {
            "median": round(statistics.median(redeliveries), 2),
            "most": round(max(redeliveries), 2),
        }
        if redeliveries
        else {},
    }
    if broken:
        show(figures | {"lost": 0}, as_json=True)
        raise Broken(f"{len(broken)} promises were not kept: {dict(Counter(b.promise for b in broken))}")
    for who, wanted in kills.items():
        if killed[who] < wanted:
            show(figures, as_json=True)
            raise Broken(f"the rollouts were over after {killed[who]} of {wanted} kills of the {who}")
    return figures


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(kills=200, rollouts=1000, in_flight=16)
    parser.add_argument("--seed", default="1", metavar="S", help="[1]")
    parser.add_argument("--who", choices=("server", "trainer", "both"), default="server", help="[server]")
    parser.add_argument("--mode", choices=("attach", "callback"), default="attach", help="[attach]")
    parser.add_argument("--replies", choices=("fixed", "random"), default="fixed", help="of the policy [fixed]")
    parser.amounts(workers=1)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep everything there")
    given = parser.parse_args()
    if given.workers > 1:
        given.who = "both"
    if given.folder is not None and given.folder.exists() and any(given.folder.iterdir()):
        parser.error(f"--folder {given.folder} is not empty")
    with tempfile.TemporaryDirectory() as made:
        show(measured(measure(given, (given.folder or Path(made)).resolve())), given.json)


if __name__ == "__main__":
    main()
