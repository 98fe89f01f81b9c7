"""The SDK's HarborBackend: a trainer that polls, a program in the box of its task, and the reward of its tests."""

import shlex

import pytest

from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.rollout.backend.harbor import HarborBackend
from osmosis_grpc.rollout.server import create_rollout_server
from tests.legacy.polling_client import PollingClient
from tests.tools.tasks.written_tasks import write

pytestmark = pytest.mark.docker
PROGRAM = """
import json, os, pathlib, urllib.request
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "go"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
    json.load(reply)
path = pathlib.Path("calc.py")
if path.exists():
    path.write_text(path.read_text().replace("a - b", "a + b"))
"""


@pytest.mark.parametrize(("task", "reward"), [("mend-python", 1.0), ("hidden-tests", 0.0)])
@pytest.mark.row("SDK S22")
async def test_the_tests_of_the_named_task_decide_on_the_reward(daemon, tmp_path, task, reward):
    write(tmp_path / "tasks")
    command = shlex.join(["python3", "-c", PROGRAM])
    backend = HarborBackend(tasks_dir=tmp_path / "tasks", agent=command, orchestrator=None, box={"url": daemon})
    app = create_rollout_server(backend=backend, configure_logging=False)
    async with HttpServer(app, host="127.0.0.1", port=0) as http, PollingClient() as client:
        result = await client.run(http.address, metadata={"harbor_task_id": task}, label=None)
    assert (result.status, result.sample.reward) == ("success", reward), result.err_message
