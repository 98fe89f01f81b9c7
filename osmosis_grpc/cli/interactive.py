"""Runs the rows of a dataset step by step on a terminal: `test -i` stops before each chat and asks what to do."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import Dataset, Row
from osmosis_grpc.records.local_host import entered
from osmosis_grpc.records.reading.message_text import mapping, mappings
from osmosis_grpc.serve.json_output import harmless
from osmosis_grpc.supervise import DaemonThreads

HELP = """\
  n, or Enter   ask the model
  c             ask the model until the row ends, without a stop
  m             show all messages
  t             show the tools
  e TEXT        replace the text of the last message, for this chat only
  i TEXT        reply TEXT instead of the model
  r N           stop this row and go to row N
  ?             show this help
  q             quit"""
BETWEEN_ROWS = """\
  n, or Enter   the next row
  r N           row N
  ?             show this help
  q             quit"""
MOST_CHARS = 2000
"""At most this many characters of a message are shown."""
LINE = 64 * 1024
"""At most this many bytes of the user's input are read at once."""


class Session:
    """The rows and the stops of one session. `leave` cancels the rollout with an id."""

    def __init__(self, dataset: Dataset, first: int, total: int) -> None:
        self.leave: Callable[[str], object] = lambda rollout_id: None
        self._dataset = dataset
        self._total = total
        self._next: int | None = first
        """The row that runs next; None at the end."""
        self._attempts: dict[int, int] = {}
        self._asks = False
        """Whether the session asks the user before the next row begins."""
        self._row = first
        self._stops = True
        self._seen = 0
        """How many messages of the conversation have been shown."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows that the user chooses. Blocks while waiting for input."""
        while self._next is not None:
            if self._asks and not self._choose_row():
                return
            row = next(self._dataset.rows(self._next, 1), None)
            if row is None:
                _say(f"There is no row {self._next}; the dataset has the rows 0 to {self._total - 1}.")
                self._asks, self._next = True, self._row
                continue
            self._row, self._next, self._asks = row.number, row.number + 1, True
            self._stops, self._seen = True, 0
            self._attempts[row.number] = self._attempts.get(row.number, 0) + 1
            _say(f"\n[row {row.number} of {self._total}] {self._dataset.name}:{row.line}")
            yield replace(row, attempt=self._attempts[row.number])

    def _choose_row(self) -> bool:
        """Ask the user for the next row. Return False if the user quits."""
        while True:
            word, rest = _ask(f"[next: row {self._next}] n, r N, ?, q > ")
            if word in ("", "n"):
                return True
            if word == "r" and rest.isascii() and rest.isdecimal():
                self._next = int(rest)
                return True
            if word == "q":
                return False
            _say(*_unknown(word), BETWEEN_ROWS)

    def stop(self, request: ChatRequest) -> Message | ChatRequest | None:
        """Show the new messages of a chat, and ask the user what to do.

        Returns the request to send to the model, or a reply to use instead of the model's, or None to end the rollout.
        """
        for message in request.messages[self._seen :]:
            _say(*_message(message))
        self._seen = len(request.messages)
        while self._stops:
            word, rest = _ask(f"[row {self._row}, chat {request.chat_number}] n, c, m, t, e, i, r N, ?, q > ")
            if word in ("", "n"):
                break
            if word == "c":
                self._stops = False
            elif word == "m":
                for message in request.messages:
                    _say(*_message(message))
            elif word == "t":
                _say(*_tools(request.tools or ()))
            elif word == "e" and rest:
                request = replace(request, messages=[*request.messages[:-1], {**request.messages[-1], "content": rest}])
                _say(*_message(request.messages[-1]))
            elif word == "i" and rest:
                return {"role": "assistant", "content": rest}
            elif word == "q" or (word == "r" and rest.isascii() and rest.isdecimal()):
                self._next, self._asks = (None if word == "q" else int(rest)), False
                return None
            else:
                _say(*_unknown(word), HELP)
        return request

    def stop_again(self) -> None:
        """Stop before the next chat, even after "c"."""
        self._stops = True

    def replied(self, message: Message) -> None:
        """Show a reply."""
        _say(*_message(message))
        self._seen += 1


class SteppedPolicy:
    """A policy that stops before each chat. If the model fails, it shows the error and asks the user again."""

    def __init__(self, policy: Policy, session: Session) -> None:
        self._policy = policy
        self._session = session
        self._threads = DaemonThreads()
        self._inner: AbstractAsyncContextManager[Any] = entered(policy)

    async def __aenter__(self) -> "SteppedPolicy":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._threads.close()
        await self._inner.__aexit__(*exc)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        while True:
            wanted = await self._threads.run(lambda: self._session.stop(request))
            if wanted is None:
                self._session.leave(request.rollout_id)
                await asyncio.get_running_loop().create_future()  # the end of the rollout cancels this call
            elif isinstance(wanted, dict):
                return ChatResponse(message=wanted)
            assert isinstance(wanted, ChatRequest)
            try:
                reply = self._policy(wanted)
                response = await reply if inspect.isawaitable(reply) else reply
            except CallError as error:
                _say(f"The model gave no reply: {printable(str(error))}")
                self._session.stop_again()
                continue
            self._session.replied(response.message)
            return response


def check_terminal() -> str:
    """Return why a session cannot begin, or "" if it can."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return "" if terminal else "-i asks on a terminal, and stdin or stdout is none; leave out -i"


def _ask(prompt: str) -> tuple[str, str]:
    """Return the first word of the user's line, and the rest. The end of the input counts as "q"."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    raw = os.read(0, LINE)  # a terminal gives one line; unlike input(), this holds no lock of Python while it waits
    if not raw:
        _say("")
        return "q", ""
    word, _, rest = raw.decode(errors="replace").strip().partition(" ")
    return word, rest.strip()


def _unknown(word: str) -> list[str]:
    """Return why the user's line is not a command; an empty list if it asks for help."""
    needed = {"e": "e needs a text", "i": "i needs a text", "r": "r needs the number of a row"}
    return [] if word == "?" else [needed.get(word, f"There is no command {printable(word)} here.")]


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{harmless(line)}\n" for line in lines))
    sys.stdout.flush()


def _message(message: Mapping[str, Any]) -> list[str]:
    """Return the lines of a message. Control characters are escaped."""
    content, role = message.get("content"), str(message.get("role"))
    lines = []
    if content is not None or not message.get("tool_calls"):
        text = content if isinstance(content, str) else repr(content)
        more = f" ... {len(text) - MOST_CHARS} more characters" if len(text) > MOST_CHARS else ""
        first, *rest = (text[:MOST_CHARS] + more).splitlines() or [""]
        lines += [f"  {printable(role)}: {printable(first)}", *(f"    {printable(line)}" for line in rest)]
    for call in mappings(message.get("tool_calls")):
        function = mapping(call.get("function"))
        lines.append(printable(f"  {role} calls {function.get('name')} {function.get('arguments')}"))
    return lines


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    functions = [mapping(tool.get("function")) for tool in tools]
    lines = [f"  {each.get('name')}: {str(each.get('description') or '').partition(chr(10))[0]}" for each in functions]
    return [printable(line) for line in lines] or ["  no tools"]
