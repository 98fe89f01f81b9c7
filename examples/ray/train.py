"""A trainer and three agent servers on a Ray cluster. One server is killed while 90 rollouts run, and none is lost.

pip install '.[server,ray]'
python examples/ray/train.py

It uses the Ray cluster of the variable RAY_ADDRESS, or starts one on this machine.
"""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from osmosis_grpc.integrations.ray import ray_targets
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.trainer import RolloutRequest, Trainer

FOLDER = Path(__file__).parent
SERVERS, ROLLOUTS = 3, 90


@contextmanager
def agent_servers(cluster: str) -> Iterator[None]:
    """Run `osmosis-grpc serve --ray`. It is usually a command in another terminal."""
    command = [sys.executable, "-m", "osmosis_grpc.serve", "--ray", "-m", "agent:agent_loop", "--no-http"]
    command += ["--ray-servers", str(SERVERS), "--ray-resources", "CPU=0.1", "--insecure", "--log-level", "warning"]
    environment = {**os.environ, "RAY_ADDRESS": cluster, "PYTHONPATH": str(FOLDER)}
    with subprocess.Popen(command, cwd=FOLDER, env=environment) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)


async def main() -> None:
    run = uuid.uuid4().hex[:8]  # a rollout id runs once
    question = [{"role": "user", "content": "Hello."}]
    requests = [RolloutRequest(rollout_id=f"{run}-{n}", messages=question) for n in range(ROLLOUTS)]
    outcomes = []
    async with Trainer(ray_targets(), EchoPolicy()) as trainer:
        print("waiting for", SERVERS, "servers", flush=True)
        await trainer.wait_for_server(300, count=SERVERS)
        print("servers:", ", ".join(server.name for server in trainer.servers), flush=True)
        async for outcome in trainer.run(requests, max_in_flight=30):
            outcomes.append(outcome)
            if len(outcomes) == 20:
                print("killing a server; Ray starts it again", flush=True)
                ray.kill(ray.get_actor("osmosis-server-0", namespace="osmosis"), no_restart=False)
    print("status:", dict(Counter(str(outcome.status) for outcome in outcomes)))
    print("attempts:", dict(Counter(outcome.attempt for outcome in outcomes)))


if __name__ == "__main__":
    context = ray.init(logging_level="error", log_to_driver=False)
    with agent_servers(context.address_info["gcs_address"]):
        asyncio.run(main())
    ray.shutdown()
