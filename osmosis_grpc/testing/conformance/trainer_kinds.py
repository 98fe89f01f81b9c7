"""The kinds of cases against a trainer: for each kind the keys of its body, and its interpreter."""

from collections.abc import Mapping
from typing import Any

from osmosis_grpc.testing.conformance.cases import Kind
from osmosis_grpc.testing.conformance.link_steps import check_steps, run_steps
from osmosis_grpc.testing.conformance.links import Failed
from osmosis_grpc.testing.conformance.trainer_run import START, TrainerRun
from osmosis_grpc.testing.conformance.trainer_steps import VERBS, frames
from osmosis_grpc.testing.conformance.vectors import check_pairs, pairs, put


async def rollout(run: TrainerRun) -> None:
    """Ask the chats of a rollout one after the other, report its outcome, and compare what the trainer made of it."""
    body = run.case.body
    chats = [int(chat.get("number", 1)) for chat in body["chats"]]
    steps: list[dict[str, Any]] = [{"accept": {}}]
    for chat in body["chats"]:
        names = {name: chat[name] for name in ("number", "sample") if name in chat}
        steps += [{"ask": chat}, {"answer": names}]
    steps.append({"report": {"chats": chats, **body.get("outcome", {})}})
    steps.append({"recorded": {"chats": chats, **body.get("prints", {})}})
    await run.start(body.get("start", {}))
    await VERBS["open"](run, {}, {})
    await run_steps(run, steps, VERBS)


async def equality(run: TrainerRun) -> None:
    """Ask a chat with each value of a pair: an equal one has the same reply, and a different one is refused."""
    path = run.case.body["field"]
    await run.start({})
    await VERBS["open"](run, {}, {})
    await run_steps(run, [{"accept": {}}], VERBS)
    for number, (one, other, equal) in enumerate(pairs(run.case.body), 1):
        key = run.rollout_id, "main", number
        run.histories[key], run.parents[key] = [START], 0
        for value, expected in ((one, {}), (other, {} if equal else {"status": "ALREADY_EXISTS"})):
            chat: dict[str, Any] = {"full": {"messages": [{"role": "user", "text": "start"}]}}
            put(chat, path, value)
            if not expected and "messages[0]" in path and isinstance(value, Mapping):
                run.histories[key] = [dict(value)]
            try:
                steps = [{"ask": {"number": number, **chat}}, {"answer": {"number": number, **expected}}]
                await run_steps(run, steps, VERBS)
            except Failed as error:
                words = "equal" if equal else "different"
                raise type(error)(f"the {words} values {one!r} and {other!r}: {error}") from None


KINDS: Mapping[str, Kind] = {
    "frames": Kind(frozenset({"steps", "start"}), ("steps",), frames, lambda body: check_steps(body["steps"], VERBS)),
    "rollout": Kind(frozenset({"start", "chats", "outcome", "prints"}), ("chats",), rollout),
    "equality": Kind(frozenset({"field", "vector", "equal", "different"}), (), equality, check_pairs),
}
"""The kinds by their names."""
