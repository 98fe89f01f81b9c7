"""Writes trajectories to a file and reads them back: json, jsonl, messages and txt."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.compat.agentic.saving import read_lines
from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory, TrajectoryStep
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import loggable

_KINDS = {"system": StepType.OBSERVATION, "user": StepType.OBSERVATION, "tool": StepType.ACTION_RESULT}


def dump_trajectories(trajectories: Iterable[Trajectory], path: str | Path, format: str = "jsonl") -> None:  # noqa: A002
    """Write trajectories to a file, which is replaced as a whole.

    `jsonl` has a trajectory on each line, `json` a list of them, `messages` on each line the messages of one as
    {"request_id": ..., "messages": [...]}, and `txt` is for people. Raises InvalidArgument for another format, and
    OSError.
    """
    if format not in _WRITERS:
        raise InvalidArgument("format", f"{format!r} is none of {', '.join(_WRITERS)}")
    target = Path(path)
    beside = target.with_name(f".{target.name[:50]}.{os.getpid()}.new")  # a name can be as long as a file system allows
    try:
        with beside.open("wb") as file:
            file.write(_WRITERS[format](list(trajectories)).encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def load_trajectories(path: str | Path, format: str = "jsonl") -> list[Trajectory]:  # noqa: A002
    """Read trajectories that dump_trajectories() or AgenticRollout wrote. Of `messages`, only the messages are known.

    Raises InvalidArgument for `txt`, for another format and for a damaged file, and OSError.
    """
    source = Path(path)
    match format:
        case "jsonl":
            return list(read_lines(source))
        case "json":
            return [Trajectory.from_dict(each) for each in _read(source, source.read_bytes(), list)]
        case "messages":
            lines = source.read_bytes().splitlines()
            return [_of_messages(_read(f"{source}:{n}", line, dict)) for n, line in enumerate(lines, 1) if line.strip()]
    why = "is for people, and cannot be loaded" if format == "txt" else "is none of json, jsonl, messages"
    raise InvalidArgument("format", f"{format!r} {why}")


def _read(where: object, data: bytes, kind: type) -> Any:
    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise InvalidArgument(str(where), f"is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise InvalidArgument(str(where), f"is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _of_messages(values: dict[str, Any]) -> Trajectory:
    made = Trajectory(request_id=str(values.get("request_id", "")), messages=list(values.get("messages") or ()))
    for message in made.messages:
        kind = _KINDS.get(str(message.get("role")), StepType.THOUGHT)
        made.add_step(TrajectoryStep(step_type=kind, content=str(message.get("content") or "")))
    return made


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _messages(made: Trajectory) -> list[dict[str, Any]]:
    return loggable(made.messages, objects=True) if made.messages else [step.to_message() for step in made.steps]


def _text(made: Trajectory) -> str:
    head = f"{made.request_id}  {made.stop_reason or 'running'}  reward {made.final_reward}"
    lines = [head, *([f"error: {made.error}"] if made.error else [])]
    for step in made.steps:
        name = f" {step.tool_name}" if step.tool_name else ""
        lines += [f"[{step.step_type}{name}]", step.content]
    return "\n".join(lines) + "\n"


_WRITERS: dict[str, Callable[[Sequence[Trajectory]], str]] = {
    "json": lambda made: json.dumps([each.to_dict() for each in made], ensure_ascii=False, indent=2) + "\n",
    "jsonl": lambda made: "".join(_line(each.to_dict()) for each in made),
    "messages": lambda made: "".join(
        _line({"request_id": each.request_id, "messages": _messages(each)}) for each in made
    ),
    "txt": lambda made: "\n".join(map(_text, made)),
}
