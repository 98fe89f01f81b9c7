"""Runs the suite against an agent server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from osmosis_grpc.testing.conformance import http2
from osmosis_grpc.testing.conformance.calls import Calls, Metadata, Trace
from osmosis_grpc.testing.conformance.cases import SHORT_SILENCE, Case, Kind, check_pairs, pairs, put
from osmosis_grpc.testing.conformance.link_steps import check_steps
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.protobuf_data import CaseError, Data
from osmosis_grpc.testing.conformance.report import Result, Skipped, Unusable
from osmosis_grpc.testing.conformance.runner import run_cases
from osmosis_grpc.testing.conformance.server_links import FEATURES, TrainerListener
from osmosis_grpc.testing.conformance.server_run import AGENT, ServerRun, ServerUnderTest
from osmosis_grpc.testing.conformance.server_steps import VERBS, call, frames

REACH = 10.0
"""The server must answer the first call, or dial the suite, within this many seconds."""


async def calls(run: ServerRun) -> None:
    """Make calls one after the other, and compare each answer."""
    for number, each in enumerate(run.case.body["calls"], 1):
        try:
            await call(run, run.filled(each), "first")
        except (Failed, CaseError) as error:
            raise type(error)(f"call {number}: {error}") from None


async def rollout(run: ServerRun) -> None:
    """Run one rollout with scripted replies, and compare its chats, its outcome and its segments."""
    body = run.case.body
    link = await run.open({})
    request = run.filled(run.init({"script": body["script"], **body.get("init", {})}))
    run.rollout_id = request["rollout_id"]
    await link.send([{"init": request}])
    await link.take({"init_reply": {"rollout_id": run.rollout_id, "response": {"created": True}}}, run.saved)
    for number, given in enumerate(run.filled(body["replies"]), 1):
        reply = dict(given)
        expected = {"rollout_id": run.rollout_id} | reply.pop("chat", {})
        try:
            chat = await link.take({"chat": expected}, run.saved)
            await run.reply(link, chat, reply)
        except (Failed, CaseError) as error:
            raise type(error)(f"chat {number}: {error}") from None
    fields = {"rollout_id": run.rollout_id} | run.filled(body.get("outcome", {}))
    outcome = (await link.take({"complete": {"outcome": fields}}, run.saved)).outcome
    await run.receipt(link, outcome)
    if "segments" in body:
        run.expect("segments", run.filled(body["segments"]), run.segments(outcome))
        _check_masks(outcome, run.segments(outcome))


def _check_masks(outcome: Any, segments: Iterable[Mapping[str, Any]]) -> None:
    """Check the rules that all segments follow: the runs add up, and each token with mask 1 has a logprob."""
    for segment in segments:
        runs = segment["mask_runs"]
        if sum(runs) != len(segment["ids"]):
            raise Failed(f"mask_runs add up to {sum(runs)}, and the segment has {len(segment['ids'])} ids")
        if sum(runs[1::2]) != len(segment["logprobs"]):
            raise Failed(f"{sum(runs[1::2])} tokens have mask 1, and there are {len(segment['logprobs'])} logprobs")
    for sample in outcome.samples:
        chats = [chat for segment in sample.segments for chat in segment.chats]
        if len(chats) != len(set(chats)):
            raise Failed(f"a chat is in two segments of the sample {sample.name}: {chats}")


async def equality(run: ServerRun) -> None:
    """Send an Init with each value of a pair. Equal values get the same answer, and different values are refused."""
    link = await run.open({})
    path = run.case.body["field"]
    for number, (one, other, equal) in enumerate(pairs(run.case.body)):
        rollout_id = f"{run.prefix}-{number}"
        run.rollout_id = rollout_id
        for value, expected in ((one, {"response": {"created": True}}), (other, _answer(path, equal=equal))):
            request = run.init({"script": [{"chat": None}]}) | {"rollout_id": rollout_id}
            put(request, path, value)
            await link.send([{"init": request}])
            try:
                await link.take({"init_reply": {"rollout_id": rollout_id, **expected}}, run.saved)
            except Failed as error:
                words = "equal" if equal else "different"
                raise Failed(f"the {words} values {one!r} and {other!r}: {error}") from None


def _answer(path: str, *, equal: bool) -> dict[str, Any]:
    if equal:
        return {"response": {"created": False}}
    status: dict[str, Any] = {"code": "ALREADY_EXISTS", "reason": "SPEC_DIFFERS"}
    if "." in path:
        status["details"] = {"SpecDiffers": {"fields": [".".join(path.split(".")[:2]).split("[")[0]]}}
    return {"status": status}


async def raw_http2(run: ServerRun) -> None:
    """Send HTTP/2 frames on a new connection, and compare how the call ends. The server must continue to serve."""
    got = await http2.exchange(run.server.target, run.filled(run.case.body["http2"]), run.trace)
    expected = run.case.body["ends"]
    if got not in expected:
        raise Failed(f"expected one of {', '.join(expected)}, got {got}")
    await call(run, {"GetServerInfo": {}}, "first")


KINDS: Mapping[str, Kind] = {
    "calls": Kind(frozenset({"calls", "link"}), ("calls",), calls),
    "frames": Kind(frozenset({"steps", "link"}), ("steps",), frames, lambda body: check_steps(body["steps"], VERBS)),
    "rollout": Kind(
        frozenset({"script", "init", "replies", "outcome", "segments", "link"}), ("script", "replies"), rollout
    ),
    "equality": Kind(frozenset({"field", "vector", "equal", "different", "link"}), (), equality, check_pairs),
    "http2": Kind(frozenset({"http2", "ends"}), ("http2", "ends"), raw_http2),
}
"""The kinds by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to connect to an agent server, and with which credentials."""

    target: str
    host: str = "127.0.0.1"
    """The address of this machine at which the server can call the suite."""
    accept: str | None = None
    """HOST:PORT at which the suite waits for the server to dial it."""
    tokens: Mapping[str, Metadata]
    """The headers of each credential that was given: `first`, and perhaps `second` and `admin`."""
    plain: bool = True
    """Whether the connection has no TLS. Raw HTTP/2 frames need this."""
    modes: Sequence[str] = ("callback", "attach", "accept", "call")


@asynccontextmanager
async def server_under_test(
    options: ServerOptions, new_channel: Callable[[], grpc.aio.Channel]
) -> AsyncIterator[ServerUnderTest]:
    """Connect to the server, and find out what it has. Raises Unusable if it cannot be tested."""
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
