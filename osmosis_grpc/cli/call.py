"""The call command: calls a method of the protocol with a JSON request, and prints the replies as JSON."""

import asyncio
import json as json_text
import sys
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path

from google.protobuf.message import Message
from google.rpc import code_pb2

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.source import chosen_server
from osmosis_grpc.network.client_calls import replies
from osmosis_grpc.network.connection_errors import explained
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, InvalidArgument, Unavailable
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.protocol.wire.methods import METHODS, Method, as_json
from osmosis_grpc.records.reading.server_source import ChosenServer
from osmosis_grpc.serve.json_output import Records, escaped, records, say_error, usage_error

CALL_TIMEOUT = 30.0
"""The default time limit of a call that is not a stream, in seconds."""


def run_call(name: str | None, data: str, timeout: float | None, options: SourceOptions, *, json: bool) -> int:
    """Call a method, or list the methods if `name` is None. Return the exit code."""
    with records(json) as out:
        if name is None:
            _list(out)
            return 0
        method = _method(name)
        try:
            request = method.read(_text(data))
        except InvalidArgument as error:
            usage_error(
                "call",
                f"--data does not fit {method.request.DESCRIPTOR.name}: {printable(' '.join(str(error).split()))}",
            )
        if timeout is None and not method.streams_responses:
            timeout = CALL_TIMEOUT
        server = chosen_server("call", options)
        try:
            return asyncio.run(_call(server, method, request, timeout, out))
        except KeyboardInterrupt:
            return 130


def _list(out: Records) -> None:
    for method in METHODS.values():
        out.write("method", name=method.name, service=method.service, callable=not method.streams_requests)
        if not method.streams_requests:
            out.say(f"{method.service}/{method}")


def _method(name: str) -> Method:
    """Look up a method by its name or by SERVICE/NAME. An unknown name ends the command with exit code 2."""
    service, _, short = name.rpartition("/")
    method = METHODS.get(short)
    if method is None or not method.path.removeprefix("/").endswith(f"{service}/{short}".removeprefix("/")):
        near = get_close_matches(short, METHODS, 1)
        advice = f"is {near[0]} meant?" if near else "call without a method lists them"
        usage_error("call", f"there is no method {printable(name)}; {advice}")
    if method.streams_requests:
        usage_error("call", f"{short} is a stream of requests; call sends one request")
    return method


def _text(data: str) -> str:
    """Return the text that --data holds or names. A file that cannot be read ends the command with exit code 2."""
    try:
        if data == "-":
            return sys.stdin.read()
        return Path(data[1:]).read_text(encoding="utf-8") if data.startswith("@") else data
    except (OSError, UnicodeDecodeError) as error:
        usage_error("call", f"--data: {printable(data)} cannot be read: {printable(str(error))}")


async def _call(server: ChosenServer, method: Method, request: Message, timeout: float | None, out: Records) -> int:
    credentials = server.credentials
    async with server.channel() as channel:
        try:
            async with aclosing(
                replies(channel, method, request, timeout=timeout, metadata=credentials.metadata)
            ) as found:
                async for reply in found:
                    message = as_json(reply)
                    out.write("reply", method=method.name, message=message)
                    indent = None if method.streams_responses else 2
                    text = json_text.dumps(message, indent=indent, ensure_ascii=False)
                    out.say("\n".join(map(escaped, text.split("\n"))))
            return 0
        except CallError as error:
            if isinstance(error, Unavailable | DeadlineExceeded) and not error.reason:  # no server has answered
                say_error(f"call: {printable(server.text_of(await explained(server.target, credentials, error)))}")
                return 2
            _refused(method, error, out)
            return 1


def _refused(method: Method, error: CallError, out: Records) -> None:
    status = code_pb2.Code.Name(error.code)
    violations = error.violations if isinstance(error, InvalidArgument) else ()
    out.write(
        "refused",
        method=method.name,
        status=status,
        reason=error.reason or None,
        message=str(error),
        fields=[{"field": field, "problem": problem} for field, problem in violations],
        retry_after=error.retry_after,
    )
    reason = f", reason {error.reason}" if error.reason else ""
    say_error(f"call: {method.name}: {status}{printable(reason)}: {printable(str(error))}")
    if error.retry_after is not None:
        say_error(f"call: retry after {error.retry_after:g} s")
