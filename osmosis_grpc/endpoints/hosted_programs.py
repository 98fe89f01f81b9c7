"""Hosts programs as agents: the HTTP server of their base URLs, and the machines that run their boxes."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.command_agent import CommandAgent
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.program_places import config_of_box
from osmosis_grpc.endpoints.programs import Program
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.tools.docker import DockerMachine
from osmosis_grpc.tools.process import Limits
from osmosis_grpc.tools.tasks import TaskBoxes

OF_TASKS = "the image of a task"
"""A placeholder for the image of a box if each task has its own image."""
SET_BY_TASKS = frozenset({"image", "writable", "user", "folder", "network", "hosts"})
"""The fields of a box that each task sets."""


def command_agent(
    command: str, environment: Mapping[str, str]
) -> tuple[CommandAgent, Callable[[], AbstractAsyncContextManager[None]]]:
    """Return the agent of a command, and a function that serves its base URLs on loopback while rollouts run.

    Raises ValueError if the command cannot be started.
    """
    address = ""

    @asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        nonlocal address
        async with HttpServer(base_url_app(endpoints)) as http:
            address = http.address
            yield

    endpoints = Endpoints(lambda: f"http://{address}")
    return CommandAgent(command, endpoints, environment=environment), serving


@asynccontextmanager
async def command_agents(
    programs: Sequence[str | Program],
    names: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float | None = None,
    memory: int | None = None,
    server_id: str = "",
    in_boxes: Mapping[str, str] | None = None,
    tasks: Path | None = None,
) -> AsyncIterator[tuple[list[CommandAgent], HttpServer]]:
    """Serve base URLs on loopback. Yield the agents of the programs, and the HTTP server.

    Args:
        programs: The programs, or their commands.
        names: The names of the first agents, in the same order. The other agents get their default names.
        environment: The variables of programs that run as the server's user.
        seconds: How long a program may run.
        memory: The most address space of each process of a program, in bytes.
        server_id: The name of this server in the labels of its containers.
        in_boxes: The variables of programs that run in boxes.
        tasks: A folder of tasks. The programs run in the boxes of the tasks.

    Raises:
        ValueError: A program cannot be started.
        SandboxError: The daemon of a box cannot be reached.
    """
    endpoints = Endpoints(lambda: f"http://{http.address}")
    limits = Limits(seconds=seconds, memory=memory)
    given = [*names, *[""] * (len(programs) - len(names))]
    async with HttpServer(base_url_app(endpoints)) as http, AsyncExitStack() as stack:
        agents = []
        for number, (program, name) in enumerate(zip(programs, given, strict=True)):
            machine, boxes = None, None
            if isinstance(program, Program) and (program.box or tasks):
                own = sorted(program.box.keys() & SET_BY_TASKS) if tasks else []
                if own:
                    raise ValueError(f"[box] {own[0]}: each task has its own; leave it out")
                fields = {"image": OF_TASKS, **program.box} if tasks else program.box
                config = config_of_box(fields, f"{server_id}-{number}", http.address)
                machine = await stack.enter_async_context(DockerMachine(config))
                if tasks is None:
                    await machine.require_image(config.image)
                else:
                    boxes = TaskBoxes(tasks, machine)
            variables = environment if machine is None else in_boxes or {}
            agents.append(
                CommandAgent(
                    program, endpoints, environment=variables, name=name, limits=limits, machine=machine, tasks=boxes
                )
            )
        yield agents, http
