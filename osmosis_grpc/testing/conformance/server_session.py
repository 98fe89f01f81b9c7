"""Runs the suite against an agent server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from osmosis_grpc.testing.conformance.calls import Calls, Metadata
from osmosis_grpc.testing.conformance.cases import SHORT_SILENCE, Case
from osmosis_grpc.testing.conformance.protobuf_data import Data
from osmosis_grpc.testing.conformance.results import Result, Skipped, Unusable
from osmosis_grpc.testing.conformance.runner import run_cases
from osmosis_grpc.testing.conformance.server_kinds import KINDS
from osmosis_grpc.testing.conformance.server_links import FEATURES, TrainerListener
from osmosis_grpc.testing.conformance.server_run import AGENT, ServerRun, ServerUnderTest
from osmosis_grpc.testing.conformance.trace import Trace

REACH = 10.0
"""Seconds in which the server answers the first call, and in which a server that dials out comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to reach an agent server and what to show to it."""

    target: str
    host: str = "127.0.0.1"
    """The address of this machine at which the server reaches the suite's callbacks."""
    accept: str | None = None
    """HOST:PORT at which the suite waits for the server to dial out."""
    tokens: Mapping[str, Metadata]
    """The headers of the credentials that are given: `first`, and perhaps `second` and `admin`."""
    plain: bool = True
    """Whether the connection has no TLS. Raw HTTP/2 needs that."""
    modes: Sequence[str] = ("callback", "attach", "accept", "call")


@asynccontextmanager
async def server_under_test(
    options: ServerOptions, new_channel: Callable[[], grpc.aio.Channel]
) -> AsyncIterator[ServerUnderTest]:
    """Yield the server, with all that cases need. Raises Unusable if it cannot be tested."""
    tokens = {"none": (), "wrong": (("authorization", "Bearer wrong-token-of-the-suite"),)} | dict(options.tokens)
    channel = new_channel()
    info = await _info(Calls(channel, tokens["first"], Trace()), options.target)
    names = [loop["name"] for loop in info["agent_loops"]]
    if AGENT not in names:
        raise Unusable(
            f"the server {options.target} has no agent loop `{AGENT}`; it has {', '.join(names) or 'none'}. In Python: "
            "osmosis-grpc serve -m osmosis_grpc.testing.conformance:agent. docs/conformance.md describes the agent"
        )
    if info["draining"]:
        raise Unusable(f"the server {options.target} drains; end the drain first")
    has = {f"feature {name}" for name in info["features"]}
    has |= {f"no feature {name}" for name in FEATURES if name not in info["features"]}
    has |= {f"{name}_token" for name in ("second", "admin") if name in options.tokens}
    has |= {"token"} if options.tokens["first"] else {"no_token"}
    has |= {"plain"} if options.plain else set()
    silence = float(info["limits"].get("chat_silence", "inf").rstrip("s"))
    has |= {SHORT_SILENCE} if silence <= 60 else set()
    has |= {"one_agent"} if len(names) == 1 else set()
    async with channel, TrainerListener(options.host, options.accept) as listener:
        yield ServerUnderTest(
            target=options.target,
            channel=channel,
            new_channel=new_channel,
            listener=listener,
            tokens=tokens,
            has=frozenset(has),
            info=info,
        )


async def test_server(
    under_test: ServerUnderTest,
    chosen: Sequence[tuple[Case, str]],
    *,
    jobs: int,
    known: Mapping[str, str],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """Run cases against a server and return their results."""

    async def play(case: Case, mode: str, prefix: str, trace: Trace) -> None:
        if missing := [need for need in case.needs if need not in under_test.has]:
            raise Skipped(f"needs {', '.join(missing)}")
        run = ServerRun(under_test, case, mode, prefix, trace)
        try:
            await KINDS[case.kind].run(run)
        finally:
            await run.close()

    return await run_cases(chosen, play, jobs=jobs, known=known, on_result=on_result, in_turn=("accept",))


async def _info(calls: Calls, target: str) -> Data:
    try:
        async with asyncio.timeout(REACH):
            answer = await calls.data("GetServerInfo", {}, REACH)
    except TimeoutError:
        raise Unusable(f"the server {target} does not answer GetServerInfo within {REACH:g} s") from None
    if answer["code"] != "OK":
        said = f"the server {target} answers GetServerInfo with {answer['code']}: {answer['status']['message']}"
        raise Unusable(f"{said}; --token-file has the token" if answer["code"] == "UNAUTHENTICATED" else said)
    found: Data = answer["response"]
    return found
