"""The kinds of cases against an agent server: for each kind the keys of its body, and its interpreter."""

from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_grpc.testing.conformance import http2
from osmosis_grpc.testing.conformance.cases import Kind
from osmosis_grpc.testing.conformance.link_steps import check_steps
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.protobuf_data import CaseError
from osmosis_grpc.testing.conformance.server_run import ServerRun
from osmosis_grpc.testing.conformance.server_steps import VERBS, call, frames
from osmosis_grpc.testing.conformance.vectors import check_pairs, pairs, put


async def calls(run: ServerRun) -> None:
    """Make calls one after the other and compare each answer."""
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
    """Check the rules of all segments: the runs add up, and there is one logprob for each token with mask 1."""
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
    """Send an Init with each value of a pair: equal ones have one answer, and different ones are refused."""
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
    """Send frames of HTTP/2 on a connection of their own, and compare how the call ends. The server serves on."""
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
"""The kinds by their names."""
