"""Runs a program for each rollout. The program asks for replies at the rollout's base URL, and writes a result file.

The program gets no variable of the server's environment unless the operator names it, so it gets no key of another
provider.
"""

import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.history_chats import POLICY
from osmosis_grpc.agent.import_hints import LOCAL_PRICES
from osmosis_grpc.agent.loop import name_problem
from osmosis_grpc.agent.request import refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome, invalid_result, outcome_of_program
from osmosis_grpc.endpoints.app import base_url_app
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.programs import Program, context_values, files_of, filled, prompt_of, resolved
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.protocol.errors import CallError, ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import Failure, FailureReason, RolloutRequest, ToolDict, jsontext
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.tools.process import Ended, Limits, run_process
from osmosis_grpc.tools.sandbox import SandboxError
from osmosis_grpc.tools.sandbox.files import Files
from osmosis_grpc.tools.workspace import Workspace

RESULT_FILE = "result.json"
MAX_RESULT_BYTES = 4 * 1024 * 1024
"""The most bytes of a result file."""
MAX_LINE = 300
"""The most characters of the last line of output in the first line of a failure."""


class CommandAgent:
    """A Runnable that starts a program for each rollout, in a new folder and with a new, empty HOME.

    No shell runs the command. Its program is searched on the PATH of `environment`.
    """

    lists_tools_without_request = True
    replayable = False

    def __init__(
        self,
        program: str | Program,
        endpoints: Endpoints,
        *,
        environment: Mapping[str, str],
        name: str = "",
        folder: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Check that the program can be started.

        Args:
            program: A command, which is split as a shell splits it, or the program of a preset. In a command, a word
                that names a file or folder below `folder` becomes its absolute path, because each program runs in a
                folder of its own.
            endpoints: Serve the base URLs.
            environment: The variables of the program. It also gets those of variables(). With a variable HOME, the
                program has no private one.
            name: The name of the agent; by default that of the preset, or of the script without its ending.
            folder: The folder of relative paths; by default the current one.
            limits: The limits of each run.

        Raises:
            ValueError: The command cannot be started, or its name cannot be the name of an agent.
        """
        self.source = self
        self._endpoints = endpoints
        self._folder = folder or Path.cwd()
        self._environment = dict(environment)
        self._limits = limits or Limits()
        self._program = Program(command=tuple(shlex.split(program))) if isinstance(program, str) else program
        words, path = list(self._program.command), self._environment.get("PATH", "")
        if self._program.install and words and not shutil.which(words[0], path=path):
            raise ValueError(f"there is no program {words[0]!r}; install it: {self._program.install}")
        self._argv, default = resolved(words, self._folder, path)
        self._setup = self._other("setup", self._program.setup, path)
        self._reward = self._other("reward", self._program.reward, path)
        self.name = name or self._program.name or default
        problem = name_problem(self.name)
        if problem:
            raise ValueError(problem[1])

    def _other(self, what: str, words: Sequence[str], path: str) -> list[str]:
        """Return the absolute command that runs before or after the program. Raises ValueError that names it."""
        try:
            return resolved(list(words), self._folder, path)[0] if words else []
        except ValueError as error:
            raise ValueError(f"the {what} command: {error}") from None

    def tools(self, request: RolloutRequest) -> list[ToolDict]:
        refuse_grader_timeout(self.name, request)
        if self._program.preset:  # an Init that cannot be a task is refused
            prompt_of(request.messages)
            files_of(request.metadata)
        return []

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the program. An exit code other than 0 is a failure with the last lines of output."""
        task = _task(context)
        async with AsyncExitStack() as stack:
            try:
                space = await stack.enter_async_context(Workspace())
                files = {"OSMOSIS_TASK_FILE": await space.write("task.json", task)}
            except OSError as error:
                problem = f"the folder of the program cannot be made: {describe(error)}"
                return RunOutcome(failure=Failure("server", clip(problem), True, reason=FailureReason.SERVER_ERROR))
            files["OSMOSIS_RESULT_FILE"] = space.folder / RESULT_FILE
            endpoint = stack.enter_context(self._endpoints.open(context, limited=True))
            run = _Run(self._program, endpoint, space, files, context, self._limits)
            run.environment = self._environment | variables(endpoint, files, self._folder, self._environment)
            if "HOME" not in self._environment:
                run.environment["HOME"] = run.values["home"]
            try:
                await run.prepare()
                if self._setup and (problem := _problem(await run.command(self._setup, b""), self._limits)):
                    return _failed(f"the setup of the program failed: {problem}")
                stdin = b"" if self._program.preset else task
                ended = await run.command(self._argv, stdin, give_up=endpoint.over.wait)
            except InvalidArgument as error:
                return _failed(str(error))
            except OSError as error:
                return _failed(f"the program {self._argv[0]} cannot be started: {error.strerror or error}")
            return await self._outcome(run, ended)

    async def _outcome(self, run: "_Run", ended: Ended) -> RunOutcome:
        """Return the outcome of a program that has ended."""
        own = not (self._program.preset or self._reward)  # what a model runs in its folder could write a reward
        wrote = own and _has_result(run.space.folder)
        problem = "" if ended.given_up or run.endpoint.limit else _problem(ended, self._limits)
        if problem and (ended.timed_out or not wrote or self._program.exit_code_counts):
            return _failed(problem, ended.output, run.endpoint.failure)
        run.endpoint.close()  # before the result, which can override what it says about samples
        outcome = await (self._graded(run) if self._reward or not own else _result(run))
        full = "length" if isinstance(run.endpoint.failure, ContextLengthExceeded) else ""
        if outcome.failure is None and not outcome.finish_reason:
            outcome = replace(outcome, finish_reason=run.endpoint.limit or full)
        return outcome

    async def _graded(self, run: "_Run") -> RunOutcome:
        """Return the outcome with the reward of the reward command; without such a command, one without a reward."""
        if not self._reward:
            return RunOutcome(messages=None)
        await SYSTEM.run(_remove_result, run.space.folder)
        graded = await run.command(self._reward, b"")
        problem = _problem(graded, self._limits)
        if not problem and _has_result(run.space.folder):
            return await _result(run)
        printed = _printed(graded.output)
        if not problem and isinstance(printed, float):
            return outcome_of_program(printed, run.context)
        said = (
            f"its last line is {printed!r:.200}, not a number" if printed else "it printed no number as its last line"
        )
        text = f"the reward command failed: {problem or said}\n{graded.output}"
        return RunOutcome(failure=Failure("grader", clip(text), False, reason=FailureReason.GRADER_EXCEPTION))

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Do nothing: the agent does not know the other rollouts of a group."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Do nothing: tools() has reserved nothing."""


class _Run:
    """One run of a program: its workspace, its values and its variables."""

    def __init__(
        self,
        program: Program,
        endpoint: Endpoint,
        space: Workspace,
        files: Mapping[str, Path],
        context: RolloutContext,
        limits: Limits,
    ) -> None:
        self.endpoint = endpoint
        self.space = space
        self.context = context
        self.environment: dict[str, str] = {}
        self.values = {
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": POLICY,
            **context_values(program.context),
            "home": str(space.folder / "home"),
            "work": str(space.work),
            "task_file": str(files["OSMOSIS_TASK_FILE"]),
            "result_file": str(files["OSMOSIS_RESULT_FILE"]),
        }
        self._program = program
        self._limits = limits

    async def prepare(self) -> None:
        """Make the HOME, the variables and the files of the program. Raises InvalidArgument and OSError."""
        request = self.context.request
        files: dict[str, str | None] = {"home": None}
        if self._program.preset:
            self.values["prompt"] = prompt_of(request.messages)
            for name, text in self._program.files.items():
                files[filled(name, self.values)] = filled(text, self.values)
            for name, text in files_of(request.metadata).items():
                files[f"work/{name}"] = text
        given = {name: filled(text, self.values) for name, text in self._program.environment.items()}
        self.environment = given | self.environment if not self._program.preset else self.environment | given
        await SYSTEM.run(_write, self.space.folder, files)

    async def command(
        self, words: Sequence[str], stdin: bytes, give_up: Callable[[], Awaitable[Any]] | None = None
    ) -> Ended:
        """Run a command in the folder of the program. Raises OSError if it cannot be started."""
        ended = await run_process(
            [filled(word, self.values) for word in words] if self._program.preset else words,
            space=self.space,
            environment=self.environment,
            stdin=stdin,
            limits=self._limits,
            secrets=[self.endpoint.api_key],
            give_up=give_up,
        )
        seconds = round(ended.seconds, 3)
        self.context.log_event("program ended", exit_code=ended.exit_code, seconds=seconds, output=ended.output)
        return ended


def _write(folder: Path, files: Mapping[str, str | None]) -> None:
    """Write files, by paths below a folder or absolute ones. Those without a text are folders. Raises OSError."""
    for name, text in files.items():
        path = folder / name
        (path if text is None else path.parent).mkdir(parents=True, exist_ok=True, mode=0o700)
        if text is not None:
            path.write_text(text, encoding="utf-8")


def _problem(ended: Ended, limits: Limits) -> str:
    """Return how a program failed; empty if its exit code is 0."""
    if ended.timed_out:
        return f"the program was stopped after its time limit of {limits.seconds:g} s"
    if ended.exit_code >= 0:
        return f"the program ended with exit code {ended.exit_code}" if ended.exit_code else ""
    try:
        return f"the program was ended by {signal.Signals(-ended.exit_code).name}"
    except ValueError:
        return f"the program was ended by signal {-ended.exit_code}"


def _printed(output: str) -> Any:
    """Return the reward on the last line of an output: a number, or what is there instead of one."""
    last = output.rstrip().rpartition("\n")[2].strip()
    try:
        return float(last)
    except ValueError:
        return last


def variables(
    endpoint: Endpoint, files: Mapping[str, Path], folder: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a program gets in addition to `environment`."""
    paths = filter(None, (str(folder), environment.get("PYTHONPATH")))
    return {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "NO_PROXY": "127.0.0.1,localhost",
        LOCAL_PRICES: environment.get(LOCAL_PRICES, "True"),
        "PYTHONPATH": os.pathsep.join(paths),
        **{name: str(path) for name, path in files.items()},
    }


@asynccontextmanager
async def command_agents(
    programs: Sequence[str | Program],
    names: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float | None = None,
    memory: int | None = None,
) -> AsyncIterator[tuple[list[CommandAgent], HttpServer]]:
    """Serve base URLs on loopback. Yields the agents of the programs, and the HTTP server.

    `names` are the names of the first programs. Raises ValueError for a program that cannot be started.
    """
    endpoints = Endpoints(lambda: f"http://{http.address}")
    limits = Limits(seconds=seconds, memory=memory)
    given = [*names, *[""] * (len(programs) - len(names))]
    agents = [
        CommandAgent(program, endpoints, environment=environment, name=name, limits=limits)
        for program, name in zip(programs, given, strict=True)
    ]
    async with HttpServer(base_url_app(endpoints)) as http:
        yield agents, http


def _task(context: RolloutContext) -> bytes:
    request = context.request
    task = {
        "rollout_id": request.rollout_id,
        "attempt": request.attempt,
        "messages": list(request.messages),
        "label": request.label,
        "metadata": dict(request.metadata),
        "max_turns": request.max_turns,
        "completion_params": dict(request.completion_params),
    }
    return jsontext.render(task).encode()


async def _result(run: _Run) -> RunOutcome:
    """Return the outcome for the result file, without the rollout's key. Without a file there is no reward."""
    try:
        data = await SYSTEM.run(_result_file, run.space.folder)
        if data is None:
            return RunOutcome(messages=None)
        if not data.strip():
            return invalid_result("the result file is empty")
        text = data.replace(run.endpoint.api_key.encode(), b"[key]").decode(errors="replace")
        result = jsontext.parse(text, "the result file", repair=True)
        if not isinstance(result, dict):
            return invalid_result("the result file: is not a JSON object")
    except (InvalidArgument, SandboxError, OSError) as error:
        return invalid_result(str(error))
    return outcome_of_program(result, run.context)


def _remove_result(folder: Path) -> None:
    """Remove what is in the place of the result file. Raises OSError."""
    path = folder / RESULT_FILE
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _has_result(folder: Path) -> bool:
    return os.path.lexists(folder / RESULT_FILE)


def _result_file(folder: Path) -> bytes | None:
    """Return the content of the result file; None if the program has made none."""
    if not _has_result(folder):
        return None
    return Files(folder, "/", None).read(RESULT_FILE, MAX_RESULT_BYTES)


def _failed(problem: str, output: str = "", chat_error: CallError | None = None) -> RunOutcome:
    """Return a failure. The last line of the output is in the first line of the message, for the log.

    If the program's newest chat has failed with `chat_error`, the failure is the trainer's, and has the error first.
    """
    last = output.rpartition("\n")[2].strip()[:MAX_LINE]
    message = f"{problem}: {last}\n{output}" if last else problem
    if chat_error is None:
        return RunOutcome(failure=Failure("agent", clip(message), False, reason=FailureReason.AGENT_EXCEPTION))
    failure = Failure.of(chat_error)
    return RunOutcome(failure=replace(failure, message=clip(f"{failure.message}; then {message}")))
