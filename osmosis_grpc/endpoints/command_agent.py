"""Runs a program for each rollout. The program asks for replies at the rollout's base URL, and writes a result file.

Of the server's environment, the program gets only the variables that the operator names. So it does not get the keys
of other providers.
"""

import math
import os
import shlex
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.history_chats import POLICY
from osmosis_grpc.agent.import_hints import LOCAL_PRICES
from osmosis_grpc.agent.loop import name_problem
from osmosis_grpc.agent.request import refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome, invalid_result, outcome_of_program
from osmosis_grpc.endpoints.endpoint_registry import Endpoints
from osmosis_grpc.endpoints.program_places import RESULT_FILE, Place, TaskPlace, place_of
from osmosis_grpc.endpoints.programs import Program, context_values, files_of, filled, prompt_of, resolved
from osmosis_grpc.endpoints.rollout_endpoint import Endpoint
from osmosis_grpc.protocol.errors import CallError, ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import Failure, FailureReason, RolloutRequest, ToolDict, jsontext
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.tools.docker import DockerMachine
from osmosis_grpc.tools.process import Ended, Limits
from osmosis_grpc.tools.sandbox import SandboxError
from osmosis_grpc.tools.tasks import TaskBoxes, Verdict

MAX_LINE = 300
"""How many characters of the last line of output the first line of a failure's message repeats."""


class CommandAgent:
    """A Runnable that starts a program for each rollout, in a new folder and with a new, empty HOME.

    The command runs without a shell. Its program is looked up on the PATH of `environment`.
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
        machine: DockerMachine | None = None,
        tasks: TaskBoxes | None = None,
    ) -> None:
        """Check that the program can be started.

        Args:
            program: A command, which is split as a shell would split it, or the program of a preset. If a word of a
                command names a file or folder below `folder`, it becomes an absolute path, because each program runs in
                its own folder.
            endpoints: The endpoints that serve the base URLs.
            environment: Variables for the program, in addition to those of variables(). HOME replaces the private HOME
                of each run.
            name: The name of the agent; by default, the name of the preset, or of the script without its ending.
            folder: The folder for relative paths; by default, the current one.
            limits: The limits of each run.
            machine: Runs the programs in boxes. The constructor does not check that a box contains the program.
            tasks: Provides the box of each rollout, and the tests that give its reward.

        Raises:
            ValueError: The command cannot be started, or its name cannot be the name of an agent.
        """
        self.source = self
        self._endpoints = endpoints
        self._folder = folder or Path.cwd()
        self._environment = dict(environment)
        self._limits = limits or Limits()
        self._machine, self._tasks = machine, tasks
        self._program = Program(command=tuple(shlex.split(program))) if isinstance(program, str) else program
        words, path = list(self._program.command), self._environment.get("PATH", "")
        if not machine and self._program.install and words and not shutil.which(words[0], path=path):
            raise ValueError(f"there is no program {words[0]!r}; install it: {self._program.install}")
        self._argv, default = (words, Path(words[0]).name) if machine else resolved(words, self._folder, path)
        self._setup = self._other("setup", self._program.setup, path)
        self._reward = self._other("reward", self._program.reward, path)
        self.name = name or self._program.name or default
        problem = name_problem(self.name)
        if problem:
            raise ValueError(problem[1])

    def _other(self, what: str, words: Sequence[str], path: str) -> list[str]:
        """Return the setup or reward command with absolute paths. Raises ValueError; the message begins with `what`."""
        try:
            return resolved(list(words), self._folder, path)[0] if words and not self._machine else list(words)
        except ValueError as error:
            raise ValueError(f"the {what} command: {error}") from None

    def tools(self, request: RolloutRequest) -> list[ToolDict]:
        refuse_grader_timeout(self.name, request)
        if self._tasks is not None:
            self._tasks.task_of(request.metadata)
        if self._program.preset:  # refuse an Init whose messages cannot be a prompt
            prompt_of(request.messages)
            files_of(request.metadata)
        return []

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the program. An exit code other than 0 without a result file is a failure, with the end of the output."""
        task = _task(context)
        async with AsyncExitStack() as stack:
            try:
                place = await stack.enter_async_context(place_of(self._machine, context.request, self._tasks))
                await place.write({"task.json": task.decode(), "home": None})
            except (OSError, SandboxError) as error:
                problem = f"the {'box' if self._machine else 'folder'} of the program cannot be made: {describe(error)}"
                return RunOutcome(failure=Failure("server", clip(problem), True, reason=FailureReason.SERVER_ERROR))
            endpoint = stack.enter_context(self._endpoints.open(context, limited=True))
            run = _Run(self._program, endpoint, place, context, self._limits)
            run.environment = self._environment | variables(run, self._folder, self._environment, self._machine is None)
            try:
                await run.prepare()
                if self._setup:
                    setup = await place.with_files(self._setup, self._folder)
                    if problem := _problem(await run.command(setup, b""), self._limits):
                        return _failed(f"the setup of the program failed: {problem}")
                stdin = b"" if self._program.preset else task
                ended = await run.command(self._argv, stdin, give_up=endpoint.over.wait, of_task=True)
            except InvalidArgument as error:
                return _failed(str(error))
            except OSError as error:
                return _failed(f"the program {self._argv[0]} cannot be started: {error.strerror or error}")
            except SandboxError as error:
                return _lost(error)
            return await self._outcome(run, ended)

    async def _outcome(self, run: "_Run", ended: Ended) -> RunOutcome:
        """Return the outcome of a program that has ended."""
        # With a preset, the model's commands run in this folder, and could write a result file with a reward.
        own = not (self._program.preset or self._reward or self._tasks)
        problem = "" if ended.given_up or run.endpoint.limit else _problem(ended, self._limits)
        counts = ended.timed_out or self._program.exit_code_counts or not own
        try:
            if problem and (counts or not await run.place.has_result()):
                return _failed(problem, ended.output, run.endpoint.failure)
            run.endpoint.close()  # marks samples; comes before the result, which can override the marks
            outcome = await (self._graded(run) if self._reward or not own else _result(run))
        except SandboxError as error:
            return _lost(error)
        if problem and outcome.failure is not None and outcome.failure.reason is FailureReason.AGENT_RESULT_INVALID:
            return _failed(problem, ended.output, run.endpoint.failure)  # it died while it wrote the result
        full = "length" if isinstance(run.endpoint.failure, ContextLengthExceeded) else ""
        if outcome.failure is None and not outcome.finish_reason:
            late = "timeout" if ended.timed_out else ""
            outcome = replace(outcome, finish_reason=run.endpoint.limit or full or late)
        return outcome

    async def _graded(self, run: "_Run") -> RunOutcome:
        """Return the outcome. Its reward comes from the task's tests or from the reward command, if there is one."""
        if isinstance(run.place, TaskPlace):
            return _judged(await run.place.verdict(), run.context)
        if not self._reward:
            return RunOutcome(messages=None)
        async with run.place.for_reward() as run.place:
            await run.place.remove_result()
            graded = await run.command(await run.place.with_files(self._reward, self._folder), b"")
            problem = _problem(graded, self._limits)
            if not problem and await run.place.has_result():
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
        """Do nothing, because the agent does not need the other rollouts of a group."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Do nothing, because tools() reserves nothing."""


class _Run:
    """One run of a program, with its place, the values that fill its texts, and its variables."""

    def __init__(
        self, program: Program, endpoint: Endpoint, place: Place, context: RolloutContext, limits: Limits
    ) -> None:
        self.endpoint = endpoint
        self.place = place
        self.context = context
        self.environment: dict[str, str] = {}
        self.values = {
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": POLICY,
            **context_values(program.context),
            "home": f"{place.folder}/home",
            "work": place.work,
            "task_file": f"{place.folder}/task.json",
            "result_file": f"{place.folder}/{RESULT_FILE}",
        }
        self._program = program
        self._limits = limits

    async def prepare(self) -> None:
        """Make the variables and the files of the program. Raises InvalidArgument, OSError and SandboxError."""
        request = self.context.request
        files: dict[str, str | None] = {}
        if self._program.preset:
            self.values["prompt"] = prompt_of(request.messages)
            for name, text in self._program.files.items():
                files[filled(name, self.values)] = filled(text, self.values)
            for name, text in files_of(request.metadata).items():
                files[f"{self.place.work}/{name}"] = text
        given = {name: filled(text, self.values) for name, text in self._program.environment.items()}
        self.environment = given | self.environment if not self._program.preset else self.environment | given
        await self.place.write(files)

    async def command(
        self,
        words: Sequence[str],
        stdin: bytes,
        give_up: Callable[[], Awaitable[Any]] | None = None,
        of_task: bool = False,
    ) -> Ended:
        """Run a command in the folder of the program. Raises OSError and SandboxError if it cannot be started.

        With `of_task`, the time limit of the task applies, too. When it is reached, the run does not fail, and what the
        program has done by then is graded.
        """
        limits, own = self._limits, self.place.task.agent_seconds if isinstance(self.place, TaskPlace) else None
        if of_task and own is not None and own < (limits.seconds or math.inf):
            limits = replace(limits, seconds=own)
        ended = await self.place.run(
            [filled(word, self.values) for word in words] if self._program.preset else words,
            environment=self.environment,
            stdin=stdin,
            limits=limits,
            secrets=[self.endpoint.api_key],
            give_up=give_up,
        )
        if ended.timed_out and limits is not self._limits:
            ended = replace(ended, given_up=True)
        seconds = round(ended.seconds, 3)
        self.context.log_event("program ended", exit_code=ended.exit_code, seconds=seconds, output=ended.output)
        return ended


def _problem(ended: Ended, limits: Limits) -> str:
    """Describe how a program failed. Return an empty string if its exit code is 0."""
    if ended.timed_out:
        limit = "the lifetime of its box" if limits.seconds is None else f"its time limit of {limits.seconds:g} s"
        return f"the program was stopped after {limit}"
    if ended.exit_code >= 0:
        return f"the program ended with exit code {ended.exit_code}" if ended.exit_code else ""
    try:
        return f"the program was ended by {signal.Signals(-ended.exit_code).name}"
    except ValueError:
        return f"the program was ended by signal {-ended.exit_code}"


def _printed(output: str) -> Any:
    """Return the number on the last line of an output, or the line itself if it is not a number."""
    last = output.rstrip().rpartition("\n")[2].strip()
    try:
        return float(last)
    except ValueError:
        return last


def variables(run: _Run, folder: Path, environment: Mapping[str, str], local: bool) -> dict[str, str]:
    """Return the variables that a program gets in addition to `environment`."""
    url, key = run.endpoint.base_url, run.endpoint.api_key
    given = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "NO_PROXY": "127.0.0.1,localhost",
        LOCAL_PRICES: environment.get(LOCAL_PRICES, "True"),
        "OSMOSIS_TASK_FILE": run.values["task_file"],
        "OSMOSIS_RESULT_FILE": run.values["result_file"],
    }
    if "HOME" not in environment:
        given["HOME"] = run.values["home"]
    if local:
        given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))
    return given


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
    """Return the outcome in the result file, without the rollout's key. Without a file, the outcome has no reward."""
    try:
        data = await run.place.result()
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


def _judged(verdict: Verdict, context: RolloutContext) -> RunOutcome:
    """Return the outcome of a task. If the tests gave no reward, it is a failure of the grader."""
    if verdict.changed_programs:
        context.log_event("the agent has changed programs of the image", paths=list(verdict.changed_programs))
    if verdict.reward is None:
        text = f"the tests of the task gave no reward: {verdict.problem}\n{verdict.output}"
        return RunOutcome(failure=Failure("grader", clip(text), False, reason=FailureReason.GRADER_EXCEPTION))
    more: dict[str, Any] = {"rewards": dict(verdict.rewards)}
    if verdict.changed_programs:
        more["changed_programs"] = list(verdict.changed_programs)
    return outcome_of_program({"reward": verdict.reward, "metadata": more}, context)


def _lost(error: SandboxError) -> RunOutcome:
    problem = f"the box of the program failed: {describe(error)}"
    return RunOutcome(failure=Failure("server", clip(problem), True, reason=FailureReason.SERVER_ERROR))


def _failed(problem: str, output: str = "", chat_error: CallError | None = None) -> RunOutcome:
    """Return a failure. The first line of its message includes the last line of the output, because the log shows it.

    If the program's newest chat failed with `chat_error`, that error is the cause of the failure, and comes first.
    """
    last = output.rpartition("\n")[2].strip()[:MAX_LINE]
    message = f"{problem}: {last}\n{output}" if last else problem
    if chat_error is None:
        return RunOutcome(failure=Failure("agent", clip(message), False, reason=FailureReason.AGENT_EXCEPTION))
    failure = Failure.of(chat_error)
    return RunOutcome(failure=replace(failure, message=clip(f"{failure.message}; then {message}")))
