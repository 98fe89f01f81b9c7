"""One process with NeMo Gym's example servers, its simple agent, and a scripted model of the Responses API.

`python -m tests.environments.nemo_gym_servers PORT`: /counter and /synonyms are resources servers, and /counter-agent
and /synonyms-agent are simple agents that use them and /model.
"""

import json
import re
import sys
from unittest.mock import MagicMock

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from nemo_gym.server_utils import ServerClient
from resources_servers.example_multi_step import app as synonyms
from resources_servers.example_session_state_mgmt import app as counter
from responses_api_agents.simple_agent import app as agent


def decide(first, step):
    """What the model does: the name and the arguments of a tool's call, or a text. `first` is the user's first text."""
    if numbers := re.findall(r"add (\d+)", first):
        calls = [("increment_counter", {"count": int(number)}) for number in numbers]
        calls = [*calls[: 1 + len(first) % 2], ("get_counter_value", {})]
    else:
        values = [sum(map(ord, word)) for word in re.findall(r"[A-Z][a-z]+", first)][:3]
        calls = [("get_synonym_value", {"synonym": "Warm"}), ("extract_synonym_values", {"synonym_values": values})]
    return calls[step] if step < len(calls) else "done"


def served(kind, config, name, **fields):
    made = kind(config=config(host="x", port=1, entrypoint="", name=name, **fields), server_client=client())
    return made.setup_webserver()


SESSIONS = []


def client():
    async def post(server_name, url_path, json=None, cookies=None, **more):
        if not SESSIONS:
            SESSIONS.append(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        body = json.model_dump(mode="json", exclude_unset=True) if hasattr(json, "model_dump") else json
        url = f"http://127.0.0.1:{sys.argv[1]}/{server_name}{url_path}"
        plain = {name: getattr(value, "value", value) for name, value in (cookies or {}).items()}
        return await SESSIONS[0].post(url, json=body, cookies=plain)

    made = MagicMock(spec=ServerClient)
    made.post = post
    return made


def main():
    root, model = FastAPI(), FastAPI()

    @model.post("/v1/responses")
    async def responses(request: Request):
        body = await request.json()
        first = next(item["content"] for item in body["input"] if item.get("role") == "user")
        done = decide(first, sum(item.get("type") == "function_call" for item in body["input"]))
        if isinstance(done, str):
            text = {"type": "output_text", "text": done, "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        else:
            fields = {"name": done[0], "arguments": json.dumps(done[1]), "status": "completed"}
            item = {"type": "function_call", "id": "f", "call_id": f"c{len(body['input'])}", **fields}
        fixed = {"id": "r", "object": "response", "created_at": 0, "model": "m", "parallel_tool_calls": True}
        return {**fixed, "tool_choice": "auto", "tools": [], "output": [item]}

    servers = {
        "counter": (counter.StatefulCounterResourcesServer, counter.StatefulCounterResourcesServerConfig),
        "synonyms": (synonyms.ExampleMultiStepResourcesServer, synonyms.ExampleMultiStepResourcesServerConfig),
    }
    for name, (kind, config) in servers.items():
        root.mount(
            f"/{name}-agent",
            served(
                agent.SimpleAgent,
                agent.SimpleAgentConfig,
                f"{name}-agent",
                resources_server={"type": "resources_servers", "name": name},
                model_server={"type": "responses_api_models", "name": "model"},
            ),
        )
        root.mount(f"/{name}", served(kind, config, name))
    root.mount("/model", model)
    uvicorn.run(root, port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
