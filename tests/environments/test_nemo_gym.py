"""NeMo Gym's example servers through a server, beside NeMo Gym's simple agent. Run by `make test-environments`."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from aiohttp import web

from osmosis_grpc.environments import open_environment
from tests.environments.faults import HOW, assert_it_fails, go_wrong
from tests.environments.parity import TASKS, Played, through_server
from tests.ports import quiet_port
from tests.processes import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
pytest.importorskip("nemo_gym")


@pytest.fixture(scope="module")
def url():
    address = f"http://127.0.0.1:{quiet_port()}"
    command = [sys.executable, "-m", "tests.environments.nemo_gym_servers", address.rpartition(":")[2]]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            wait_until(lambda: answers(address), timeout=120)
            yield address
        finally:
            process.kill()


def answers(address):
    with suppress(OSError):
        return urlopen(f"{address}/openapi.json").status == 200


def rows_of(name):
    """TASKS rows: those of the counter with other numbers, those of the synonyms several times."""
    import resources_servers.example_multi_step as synonyms
    import resources_servers.example_session_state_mgmt as counter

    from tests.environments.nemo_gym_servers import decide

    folder = Path(next(iter((counter if name == "counter" else synonyms).__path__)))
    examples = [json.loads(line) for line in (folder / "data" / "example.jsonl").read_text().splitlines()]
    for number in range(TASKS):
        row = json.loads(json.dumps(examples[number % len(examples)]))
        if name == "counter":
            row["responses_create_params"]["input"][0]["content"] = f"add {number} then add 2 then get the count"
            row |= {"initial_count": 3, "expected_count": number + 5}
        elif number % 3:  # what the model is going to say, or a part of it
            first = next(each["content"] for each in row["responses_create_params"]["input"] if each["role"] == "user")
            row["expected_synonym_values"] = decide(first, 1)[1]["synonym_values"][: number % 3] or [1]
        yield row


def reply(messages):
    from tests.environments.nemo_gym_servers import decide

    first = next(message["content"] for message in messages if message["role"] == "user")
    done = decide(first, sum(message["role"] == "tool" for message in messages))
    if isinstance(done, str):
        return done
    function = {"name": done[0], "arguments": json.dumps(done[1])}
    call = {"id": f"call-{len(messages)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("name", ["counter", "synonyms"])
async def test_rewards_parts_and_turns_are_those_of_the_library(name, url, tmp_path):
    rows = list(rows_of(name))
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    played, _ = await through_server(f"nemo-gym:{url}/{name},data={tmp_path}/tasks.jsonl", reply)
    for number, row in enumerate(rows):
        request = Request(f"{url}/{name}-agent/run", json.dumps(row).encode(), {"content-type": "application/json"})
        verdict = json.load(urlopen(request))
        turns = 1 + sum(item["type"] == "function_call" for item in verdict["response"]["output"])
        own = {key: value for key, value in verdict.items() if key not in row and key not in ("response", "reward")}
        parts = {key: float(value) for key, value in own.items() if isinstance(value, int | float)}
        assert played[str(number)] == Played({"main": verdict["reward"]}, parts, turns)
    assert len({(each.rewards["main"], str(each.parts)) for each in played.values()}) > 1


@pytest.mark.parametrize("how", HOW)
async def test_what_goes_wrong_is_a_failure_that_names_the_task(how, tmp_path):
    async def seed(request):
        return web.json_response({})

    async def verify(request):
        if how == "hangs":
            await asyncio.Event().wait()
        return web.json_response({"reward": go_wrong(how)})

    app = web.Application()
    app.add_routes([web.post("/seed_session", seed), web.post("/verify", verify)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"responses_create_params": {"input": "1?"}}))
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    await assert_it_fails(f"nemo-gym:{address},data={tmp_path}/tasks.jsonl,seconds=0.5")
    await runner.cleanup()


@pytest.mark.parametrize("spec", ["nemo-gym:http://127.0.0.1:9", "nemo-gym:here,data=x", "nemo-gym:http://h,data=none"])
def test_a_wrong_name_or_option_is_refused(spec):
    with pytest.raises(ValueError, match="nemo-gym"):
        open_environment(spec)


def test_a_task_may_hold_any_character(tmp_path):
    question = "one\u2028two\x85three"
    row = {"responses_create_params": {"input": question}}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    environment = open_environment(f"nemo-gym:http://127.0.0.1:9,data={tmp_path}/tasks.jsonl")
    assert environment.task(next(iter(environment.keys()))).messages[-1]["content"] == question
