"""Programs for CommandAgent that need only the standard library, and a server that hosts them."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.command_agent import CommandAgent
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.settings.process_environment import program_environment
from osmosis_grpc.tools.process import Limits
from osmosis_grpc.trainer import Trainer

USER = {"role": "user", "content": "What is 2 + 3?"}
HELPER = """
import json, os, sys, urllib.request

def ask(messages, **body):
    data = json.dumps({"model": "policy", "messages": messages} | body).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, headers)
    with urllib.request.urlopen(request) as response:
        message = json.load(response)["choices"][0]["message"]
    messages.append(message)
    return message

def result(**values):
    with open(os.environ["OSMOSIS_RESULT_FILE"], "w") as file:
        json.dump(values, file)

def say(text):
    "Leave a mark for the test, in the server's folder."
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), text)
    open(path + ".new", "w").write(os.getcwd())
    os.rename(path + ".new", path)

USER = {"role": "user", "content": "What is 2 + 3?"}
"""
"""A module that programs import from the server's folder."""
COMMAND = f"{sys.executable} -S agent.py"


def write(folder: Path, program: str) -> None:
    (folder / "helper.py").write_text(HELPER)
    (folder / "agent.py").write_text("from helper import *\n" + program)


@asynccontextmanager
async def hosted(
    folder: Path,
    program: str,
    policy: Any,
    *,
    command: str = COMMAND,
    config: Any = None,
    environment=(),
    **limits: Any,
):
    """Yields a trainer whose only server runs a program, written into a folder, for each rollout."""
    write(folder, program)
    endpoints = Endpoints(lambda: f"http://{http.address}")
    agent = CommandAgent(
        command, endpoints, environment=program_environment(environment), folder=folder, limits=Limits(**limits)
    )
    async with (
        HttpServer(base_url_app(endpoints)) as http,
        AgentServer([agent], port=0, config=config or ServerConfig()) as server,
        Trainer([server.address], policy) as trainer,
    ):
        yield trainer


async def outcome_of(folder: Path, program: str, policy: Any, *, request: Any = None, **options: Any) -> Any:
    """Returns the outcome of one rollout of a program."""
    async with hosted(folder, program, policy, **options) as trainer:
        return await trainer.rollout(**{"rollout_id": "r1", "messages": [USER]} | (request or {}))
