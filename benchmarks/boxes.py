"""Programs in boxes at once: python -m benchmarks.boxes IMAGE [--at-once 32] [--rollouts 64].

The server is a process of its own. The image has python3; the program of a box asks three times for a reply. Prints how
long a box takes from its request to its first chat, and how late the server's event loop ran.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.trainer import Trainer

CHATS = 3
PROGRAM = f"""
import json, os, urllib.request
messages = [{{"role": "user", "content": "Say something."}}]
for _ in range({CHATS}):
    body = json.dumps({{"model": "policy", "messages": messages}}).encode()
    head = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
    message = json.load(urllib.request.urlopen(asked, timeout=300))["choices"][0]["message"]
    messages += [message, {{"role": "user", "content": "And now?"}}]
"""
BUCKET = re.compile(r'osmosis_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)')


def lag(port: str) -> str:
    """Return the shares of the event loop's lag, from the server's metrics."""
    text = urllib.request.urlopen(f"http://{port}/metrics", timeout=10).read().decode()
    counts = [(float(limit), int(count)) for limit, count in BUCKET.findall(text)]
    total = counts[-1][1]
    worst = next(limit for limit, count in counts if count == total)
    usual = next(limit for limit, count in counts if count >= 0.99 * total)
    return f"{total} measurements, 99 % below {usual * 1000:g} ms, all below {worst * 1000:g} ms"


async def main(image: str, url: str, at_once: int, rollouts: int) -> None:
    """Run the rollouts, and print the figures."""
    began: dict[str, float] = {}
    waited: list[float] = []
    script = ScriptedPolicy(["something"] * CHATS)

    async def policy(request: ChatRequest) -> ChatResponse:
        if request.rollout_id in began:
            waited.append(time.monotonic() - began.pop(request.rollout_id))
        return await script(request)

    with tempfile.TemporaryDirectory() as folder:
        box = f"""[box]\nimage = "{image}"\nurl = "{url}"\n"""
        text = f"""command = ["python3", "-c", '''{PROGRAM}''']\nreward = ["echo", "1"]\n{box}"""
        (Path(folder) / "asks.toml").write_text(text)
        command = [sys.executable, "-m", "osmosis_grpc.serve", "--program", "asks.toml", "--json", "--no-journal"]
        more = [
            "--no-http",
            "--log-level",
            "warning",
            "--grpc-port",
            "0",
            "--metrics-port",
            "0",
            "--max-concurrent",
            str(at_once),
        ]
        server = subprocess.Popen([*command, *more], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        ready = json.loads(await asyncio.to_thread(server.stdout.readline))
        slots, done = asyncio.Semaphore(at_once), []

        async def one(trainer: Trainer, number: int) -> None:
            async with slots:
                began[f"r{number}"] = time.monotonic()
                messages = [{"role": "user", "content": "Begin."}]
                outcome = await trainer.rollout(rollout_id=f"r{number}", messages=messages)
                done.append(outcome)
                print(f"\r{len(done)} of {rollouts} rollouts, {time.monotonic() - start:.0f} s", end="", flush=True)

        async with Trainer(ready["grpc"], policy) as trainer:
            start = time.monotonic()
            await asyncio.gather(*(one(trainer, number) for number in range(rollouts)))
        seconds = time.monotonic() - start
        failed = [outcome.failure for outcome in done if outcome.reward != 1.0]
        print(f"\n{len(done) - len(failed)} with a reward, {len(failed)} without {failed[:1] or ''}")
        waited.sort()
        print(
            f"{len(done) / seconds:.1f} rollouts a second; first chat after {waited[len(waited) // 2]:.1f} s (median)"
        )
        print(lag(ready["metrics"]))
        server.terminate()
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--url", default="")
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=64)
    given = parser.parse_args()
    asyncio.run(main(given.image, given.url, given.at_once, given.rollouts))
