"""Writes conformance/vectors/transcripts.yaml: hellos, heartbeats, breaks and ends of a stream, as one side sees them.

`python scripts/conformance_transcripts.py` makes them from the rules of a stream
(osmosis_grpc/protocol/stream/stream_machine.py), which have no I/O and no clock. `--check` fails if the file
is not up to date.
"""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, services_pb2  # noqa: E402
from osmosis_grpc.protocol.stream.stream_machine import StreamMachine  # noqa: E402
from osmosis_grpc.protocol.wire.status import to_status  # noqa: E402

FILE = ROOT / "conformance" / "vectors" / "transcripts.yaml"
HEAD = """\
# Transcripts of one stream, as the side `side` sees it. They are for an implementation of a stream without a network:
# feed the inputs in order, and compare. `at` is the time in seconds. Inputs: `gets` a message with these frames,
# `sends` a frame that this side wants to send, `time` passes, `gets_end` of the other side's direction, `ends` by this
# side. Outputs: `handles` these kinds of frames, `writes` these frames, and `ended` with a status.
# scripts/conformance_transcripts.py makes this file.
"""
ACCEPTED = {"server": ["init", "chat_reply", "heartbeat", "goodbye"], "trainer": ["init_reply", "chat", "heartbeat"]}
HELLO = {
    "server": {"hello": {"attachment_id": "attachment of a test"}},
    "trainer": {"hello": {"journal_id": "journal"}},
}
OPEN = {"at": 0, "gets": ["hello"]}
SCRIPTS: list[dict[str, Any]] = [
    {
        "name": "hello, then frames",
        "does": [OPEN, {"at": 1, "gets": ["init", "heartbeat"]}, {"at": 2, "sends": "init_reply"}],
    },
    {"name": "another frame before the hello", "does": [{"at": 0, "gets": ["heartbeat"]}]},
    {"name": "a message without frames before the hello", "does": [{"at": 0, "gets": []}]},
    {"name": "frames beside the opener's hello", "does": [{"at": 0, "gets": ["hello", "init"]}]},
    {"name": "a second hello", "does": [OPEN, {"at": 1, "gets": ["hello"]}]},
    {"name": "no hello in time", "does": [{"at": 9, "time": True}, {"at": 10, "time": True}]},
    {"name": "the end before the hello", "does": [{"at": 1, "gets_end": True}]},
    {"name": "a frame that a trainer does not send", "does": [OPEN, {"at": 1, "gets": ["chat_reply", "subscribe"]}]},
    {"name": "more than 4,096 frames", "does": [OPEN, {"at": 1, "gets": ["heartbeat"], "times": 4097}]},
    {
        "name": "heartbeats after 15 seconds without a frame",
        "does": [OPEN, *({"at": at, "gets": ["heartbeat"]} for at in (5, 10, 15)), {"at": 15, "time": True}],
    },
    {
        "name": "silence of 45 seconds",
        "does": [OPEN, *({"at": at, "time": True} for at in (5, 10, 15, 20, 25, 30, 35, 40, 45, 50))],
    },
    {"name": "a side that is done", "does": [OPEN, {"at": 1, "sends": "init_reply"}, {"at": 2, "ends": True}]},
    {"name": "the other side closes its direction", "does": [OPEN, {"at": 1, "gets_end": True}]},
    {
        "name": "the answerer's hello may have company",
        "side": "trainer",
        "does": [{"at": 0, "gets": ["hello", "chat"]}, {"at": 1, "sends": "chat_reply"}],
    },
]


def transcript(script: dict[str, Any]) -> dict[str, Any]:
    """Run a script and return it with what the stream does."""
    side = script.get("side", "server")
    got, sent = (
        (services_pb2.AttachRequest, services_pb2.AttachResponse)
        if side == "server"
        else (services_pb2.AttachResponse, services_pb2.AttachRequest)
    )
    beat = sent(frames=[type(sent().frames.add())(heartbeat=attach_pb2.Heartbeat())]).SerializeToString()
    machine = StreamMachine(beat, waits=side == "trainer", half_closes=side == "trainer", now=0.0)
    machine.expect_hello(0.0, alone=side == "server")
    steps = []
    for step in script["does"]:
        now, made = float(step["at"]), deepcopy(step)
        if "gets" in step:
            message = got()
            for name in step["gets"] * step.get("times", 1):
                json_format.ParseDict(HELLO[side] if name == "hello" else {name: {}}, message.frames.add())
            machine.receive(message, message.ByteSize(), now)
            handled = []
            while frames := machine.next_frames(set(ACCEPTED[side])):
                handled += [kind for kind, _ in frames]
            made |= {"handles": handled} if handled else {}
        elif "sends" in step:
            frame = json_format.ParseDict({step["sends"]: {}}, type(sent().frames.add())())
            machine.send(sent(frames=[frame]).SerializeToString())
        elif "gets_end" in step:
            machine.received_end()
        elif "ends" in step:
            machine.end(None, now)
        else:
            machine.tick(now)
        written = []
        while (data := machine.next_message(now)) is not None:
            written += [frame.WhichOneof("frame") for frame in sent.FromString(data).frames]
            machine.written(now)
        made |= {"writes": written} if written else {}
        if machine.state.value == "ended":
            error: Any = machine.failure or machine.error
            made["ended"] = "OK" if error is None else _name(to_status(error).code)
        steps.append(made)
        if "ended" in made:
            break
    return {"name": script["name"], "side": side, "steps": steps}


def _name(code: int) -> str:
    from google.rpc import code_pb2

    return str(code_pb2.Code.Name(code))


def text() -> str:
    """Return the whole file."""
    made = yaml.safe_dump(
        [transcript(script) for script in SCRIPTS], sort_keys=False, width=120, default_flow_style=None
    )
    return f"{HEAD}\n{made}"


def main() -> int:
    """Write the file, or compare it with `--check`."""
    if "--check" not in sys.argv:
        FILE.write_text(text(), encoding="utf-8")
        return 0
    if FILE.read_text(encoding="utf-8") == text():
        return 0
    print(f"{FILE.relative_to(ROOT)} is not up to date: run python scripts/conformance_transcripts.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
