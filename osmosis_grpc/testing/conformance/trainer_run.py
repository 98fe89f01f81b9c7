"""One run of a case against a trainer: its process, and the state and helpers that its steps share."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
from collections.abc import Callable, Mapping
from typing import Any

from osmosis_grpc.network.free_ports import check_free
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.cases import Case
from osmosis_grpc.testing.conformance.links import Failed, Link, OutOfTime
from osmosis_grpc.testing.conformance.patterns import differences
from osmosis_grpc.testing.conformance.protobuf_data import Data
from osmosis_grpc.testing.conformance.report import Skipped
from osmosis_grpc.testing.conformance.run import Run
from osmosis_grpc.testing.conformance.trainer_links import AcceptLink, AttachLink, CallbackLink, PlayedServer

READ = job("testing.conformance.output", OnFailure.RAISE)
LACKS = 3
"""The exit code of a trainer that lacks a mode or an option."""
STOP = 2.0
"""How many seconds to wait between SIGTERM and SIGKILL."""
KEPT_ERRORS = 4000
"""How many characters from the end of stderr the report shows at most."""
STEP = job("testing.conformance.step", OnFailure.RAISE)


class TrainerProcess:
    """One process of the trainer under test."""

    def __init__(self, process: asyncio.subprocess.Process, trace: Trace) -> None:
        self.lines: list[dict[str, Any]] = []
        """The objects that the trainer has printed, in order."""
        self.errors = ""
        """The end of stderr."""
        self._process = process
        self._trace = trace
        self._news = asyncio.Condition()
        self._tasks = [child(READ, self._read_lines()), child(READ, self._read_errors())]

    @classmethod
    async def start(cls, command: str, options: Mapping[str, Any], trace: Trace) -> "TrainerProcess":
        """Start a command with options. Raises OSError if it cannot be started."""
        arguments = [*shlex.split(command)]
        for name, value in options.items():
            arguments += [f"--{name}", str(value)]
        trace.add("->", "start", " ".join(arguments))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=64 * 1024 * 1024
        )
        return cls(process, trace)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds. Check it after each line, and at the end of the output."""
        async with self._news:
            await self._news.wait_for(condition)

    async def leave(self) -> None:
        """Close standard input, so that the trainer leaves when its rollouts have ended."""
        assert self._process.stdin is not None
        self._trace.add("->", "the end of stdin")
        self._process.stdin.close()

    async def ended(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process and its children, first with SIGTERM and then with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP):
                        await self._process.wait()
        for task in self._tasks:
            task.cancel()

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(raw)
                if isinstance(found, dict) and "event" in found:
                    self._trace.add("<-", "printed", found)
                    async with self._news:
                        self.lines.append(found)
                        self._news.notify_all()
        await self._process.wait()
        async with self._news:
            self._news.notify_all()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):
            self.errors = (self.errors + data.decode(errors="replace"))[-KEPT_ERRORS:]


class EndedAtOnce(Failed):
    """The trainer ended with an error before it did anything."""


START: Data = {"role": "user", "text": "start"}
TOOLS: list[Data] = []
"""The tools of all rollouts: in the answer to an Init, and in chats over a callback."""


class TrainerRun(Run):
    """The state of a case, including the trainer's process, its chats, and what it has printed."""

    quiet = 0.5

    def __init__(self, command: str, case: Case, mode: str, prefix: str, trace: Trace) -> None:
        super().__init__(case, mode, prefix, trace, {"id": f"{prefix}-1", "prefix": prefix})
        self.command = command
        self.server = PlayedServer("127.0.0.1")
        self.process: TrainerProcess | None = None
        self.may_end = False
        """Whether the trainer may end, because it was asked to leave or its stream was replaced."""
        self.rollout_id = f"{prefix}-1"
        self.attempt = 1
        self.histories: dict[tuple[str, str, int], list[Data]] = {}
        """The messages of each chat that was sent, without its reply, by rollout, sample and number."""
        self.parents: dict[tuple[str, str, int], int] = {}
        self._printed: set[int] = set()
        self._listen = ""
        self._stderr_shown = False

    async def start(self, given: Mapping[str, Any]) -> None:
        """Start the trainer. `given` may have rollouts, history and poll."""
        await self.server.__aenter__()
        options: Data = {"mode": self.mode}
        if self.mode == "accept":
            self._listen = f"127.0.0.1:{_free_port()}"
            options["listen"] = self._listen
        else:
            options["target"] = self.server.address
        if self.mode == "callback":
            self.add_link("main")
        options |= {"rollouts": given.get("rollouts", 1), "prefix": self.prefix}
        options |= {name: given[name] for name in ("history", "poll") if name in given}
        try:
            self.process = await TrainerProcess.start(self.command, options, self.trace)
        except OSError as error:
            raise EndedAtOnce(f"the trainer cannot be started: {error}") from None

    async def open(self, hello: Mapping[str, Any] | None, name: str = "main") -> Link:
        """Open a link, or its next stream."""
        link = self.add_link(name)
        await self.guard(link.open(hello))
        return link

    def new_link(self, name: str, credential: str = "first") -> Link:
        """Return a link that is not open yet."""
        journal = f"journal {name} of {self.prefix}"
        if self.mode == "attach":
            return AttachLink(self.server, self.trace, journal)
        if self.mode == "accept":
            return AcceptLink(self._listen, self.trace, journal)
        return CallbackLink(self.server, self.trace)

    async def guard(self, work: Any) -> Any:
        """Await the work of a step. If the trainer ends meanwhile, fail with what it wrote to stderr, or skip the case.

        The exit code 3 skips the case. The work continues if the trainer may end, because it was asked to leave or its
        stream was replaced.
        """
        assert self.process is not None
        step, end = child(STEP, work), child(STEP, self.process.ended())
        try:
            await asyncio.wait({step, end}, return_when=asyncio.FIRST_COMPLETED)
            why = str(step.exception()) if step.done() and isinstance(step.exception(), Failed) else ""
            if (why or not step.done()) and not self.may_end:
                self.check_exit(why)
            return await step
        finally:
            step.cancel()
            end.cancel()

    def check_exit(self, why: str) -> None:
        """Raise Skipped or Failed if the trainer has ended."""
        process = self.process
        if process is None or process.exit_code is None:
            return
        if process.exit_code == LACKS:
            raise Skipped(f"the trainer lacks the mode {self.mode} or an option of this case")
        ended = f"the trainer ended with exit code {process.exit_code} before its stdin had ended; {self.stderr()}"
        done_nothing = not any("<-" in line for line in self.trace.lines) and not self.case.body.get("start")
        kind = EndedAtOnce if done_nothing and process.exit_code else Failed
        raise kind("\n".join(filter(None, [why, ended])))

    def stderr(self) -> str:
        """Return the end of the trainer's stderr, for the end of a message."""
        errors = self.process.errors if self.process is not None else ""
        self._stderr_shown = True
        return f"its stderr ends with:\n{errors}" if errors.strip() else "it wrote nothing to stderr"

    async def printed(self, expected: Mapping[str, Any], wait: float) -> None:
        """Expect a printed line with these values. Fields such as `event` and `rollout_id` choose the line."""
        assert self.process is not None
        process = self.process
        names = {
            key: expected[key] for key in ("event", "rollout_id", "chat_number", "attempt", "sample") if key in expected
        }

        def found() -> int | None:
            for index, line in enumerate(process.lines):
                if index not in self._printed and all(line.get(key) == value for key, value in names.items()):
                    return index
            return None

        try:
            async with asyncio.timeout(wait):
                await process.until(lambda: found() is not None or process.exit_code is not None)
        except TimeoutError:
            pass
        index = found()
        if index is None:
            self.check_exit(f"the trainer did not print {json.dumps(names)}")
            raise OutOfTime(f"the trainer did not print {json.dumps(names)} within {wait:g} s")
        self._printed.add(index)
        self.expect("printed", expected, process.lines[index])

    def count_printed(self, expected: Mapping[str, Any]) -> int:
        """Return how many printed lines have these values."""
        assert self.process is not None
        return sum(not list(differences(expected, line, dict(self.saved))) for line in self.process.lines)

    # What the policy replies by the rule of docs/conformance.md.

    def history(self, sample: str, number: int) -> list[Data]:
        """Return the messages of a chat that was sent, with the reply that the policy gives."""
        messages = self.histories[self.rollout_id, sample, number]
        return [*messages, {"role": "assistant", "text": f"echo: {_text(messages)}"}]

    def ids(self, sample: str, number: int) -> tuple[list[int], list[int]]:
        """Return the ids of the whole prompt and of the reply of a chat."""
        messages = self.histories[self.rollout_id, sample, number]
        parent = self.parents[self.rollout_id, sample, number]
        prompt: list[int] = []
        known = 0
        if parent:
            before, reply = self.ids(sample, parent)
            prompt, known = [*before, *reply], len(self.history(sample, parent))
        prompt += [1000 + len(_own_text(message).encode()) for message in messages[known:]]
        return prompt, [number, 2000 + len(f"echo: {_text(messages)}".encode())]

    def segments(self, sample: str, chats: list[int]) -> Data:
        """Return the segment of these chats. Each continues the one before."""
        runs: list[int] = []
        length = 0
        for number in chats:
            prompt, reply = self.ids(sample, number)
            runs += [len(prompt) - length, len(reply)]
            length = len(prompt) + len(reply)
        prompt, reply = self.ids(sample, chats[-1])
        return {"ids": [*prompt, *reply], "mask_runs": runs, "logprobs": [-0.5, -0.25] * len(chats), "chats": chats}

    async def close(self) -> None:
        """Stop the trainer and close the links."""
        if self.process is not None:
            await self.process.stop()
            if self.process.errors.strip() and not self._stderr_shown:
                self.trace.add("<-", "stderr", self.process.errors[-600:])
        await super().close()
        with contextlib.suppress(Exception):
            await self.server.__aexit__()


def _own_text(message: Data) -> str:
    return str(message.get("text", ""))


def _text(messages: list[Data]) -> str:
    return _own_text(messages[-1]) if messages else ""


def _free_port() -> int:
    """Return a free port. It is below the ports that systems assign to connections, so they do not take it."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError):
            check_free("127.0.0.1", port)
            return port
