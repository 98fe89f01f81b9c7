"""Sessions of OpenEnv on an agent server that serves the calculator. Needs the extra `openenv`.

python examples/openenv_session.py 127.0.0.1:50051
"""

import sys

from osmosis_grpc.integrations.openenv import OsmosisSessionFactory
from osmosis_grpc.policies import ToolCallingMock

TASKS = [{"prompt": "What is 2 + 3?", "answer": "5"}, {"prompt": "What is 7 / 2?", "answer": "3.5"}]

with OsmosisSessionFactory([sys.argv[1]], ToolCallingMock()) as factory:  # yours samples from a model
    for task in TASKS:
        session = factory.create(task)
        session.wait_for_completion(timeout_s=60)
        trace, result = session.fetch_training_trace(), session.verify([])
        trained = sum(sum(turn.loss_mask) for turn in trace.turns)
        print(task["prompt"], "reward", result.env_reward, "turns", len(trace.turns), "trained tokens", trained)
