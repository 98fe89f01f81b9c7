"""Makes the agents of --program and --command from their options."""

import hashlib
import os
import shlex
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.serve.workers.worker import Worker
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.compound_values import commands_of
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.tools.sandbox import SandboxError

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings


def _name_of_boxes(options: "RolloutServerSettings", worker: Worker | None) -> str:
    """Return the name of this process in the labels of its boxes. A process that replaces it has the same name."""
    number = worker.config.index if worker is not None else 0
    where = f"{options.state_folder or os.getpid()} {options.host}:{options.grpc_port} {number}"
    return f"{socket.gethostname()[:30]}-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


async def hosted_programs(
    stack: AsyncExitStack, options: "RolloutServerSettings", worker: Worker | None
) -> tuple[list[Any], list[Supervisor]]:
    """Return the agents of --command and --program, and the supervisors of the servers of their base URLs.

    Raises OptionError.
    """
    commands = commands_of(options.command)
    if not (commands or options.program):
        for name in ("box", "tasks"):
            if getattr(options, name):
                raise OptionError(f"{{{name}}}: there is no {{program}} or {{command}} that could run in a box")
        return [], []
    from osmosis_grpc.endpoints.hosted_programs import command_agents
    from osmosis_grpc.endpoints.programs import Program, load_program
    from osmosis_grpc.settings.process_environment import program_environment

    memory = options.command_memory_mib
    try:
        programs = [load_program(name) for name in options.program]
    except ValueError as error:
        raise OptionError("{program}: {error}", error=error) from None
    reward = tuple(shlex.split(options.reward or ""))
    context = options.program_context
    programs = [replace(program, reward=reward or program.reward, context=context) for program in programs]
    hosted = [*(Program(command=tuple(shlex.split(command)), reward=reward) for command in commands), *programs]
    image = (options.box or "").removeprefix("docker:")
    hosted = [replace(each, box={**each.box, **({"image": image} if image else {})}) for each in hosted]
    if options.tasks is not None and (image or any(each.reward for each in hosted)):
        raise OptionError("{tasks}: each task has its own image and reward; leave out {box}, {reward} and `reward`")
    if memory is not None and (options.tasks or any(each.box for each in hosted)):
        raise OptionError("{command_memory_mib}: a box has its own limit, `memory` in the table [box]")
    strict, given = options.strict_exit, program_environment(options.command_env)
    agents = command_agents(
        [replace(program, exit_code_counts=strict) for program in hosted],
        options.command_name,
        given,
        in_boxes={name: value for name, value in given.items() if name in options.command_env},
        server_id=_name_of_boxes(options, worker),
        tasks=options.tasks,
        seconds=options.command_timeout_seconds,
        memory=None if memory is None else memory * 1024 * 1024,
    )
    try:
        agents_of_programs, http = await stack.enter_async_context(agents)
    except (ValueError, OSError, SandboxError, MissingExtraError) as error:
        raise OptionError("{option}: {error}", option="--program" if programs else "--command", error=error) from None
    return agents_of_programs, [http.supervisor]
