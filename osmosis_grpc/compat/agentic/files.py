"""Writes and reads files of trajectories, and appends to a file that several processes write.

A process locks the file while it appends. A process that is killed meanwhile leaves an incomplete line. Readers skip
this line, and the next writer removes it. Its rollout was never reported as saved.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.compat.agentic.trajectory import StepType, Trajectory, TrajectoryStep
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import loggable

DEFAULT_FOLDER = "trajectories"
FILE = "trajectories.jsonl"
BLOCK = 64 * 1024
_KINDS = {"system": StepType.OBSERVATION, "user": StepType.OBSERVATION, "tool": StepType.ACTION_RESULT}


class TrajectorySaveError(OSError):
    """Trajectories could not be saved. They are in `trajectories`."""

    def __init__(self, message: str, trajectories: Sequence[Trajectory]) -> None:
        super().__init__(message)
        self.trajectories = list(trajectories)


def save_path(path: str | None) -> Path:
    """Return the file for the setting trajectory_save_path."""
    given = Path(path or DEFAULT_FOLDER)
    return given if given.suffix == ".jsonl" else given / FILE


class TrajectoryFile:
    """Appends to one file. Its methods block, so call them on a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
        except OSError as error:
            raise InvalidArgument("trajectory_save_path", f"{path} cannot be written: {error.strerror}") from None

    def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Append trajectories, one line each, and wait until the disk has them. Raises TrajectorySaveError."""
        try:
            lines = [json.dumps(each.to_dict(), ensure_ascii=False, allow_nan=False) + "\n" for each in trajectories]
            data = "".join(lines).encode("utf-8", "surrogatepass")
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                begin = _after_last_line(file.fileno())
                os.ftruncate(file.fileno(), begin)
                try:
                    _write(file.fileno(), data, begin)
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), begin)
                    raise
        except (OSError, ValueError) as error:
            names = ", ".join(each.request_id for each in trajectories[:3])
            raise TrajectorySaveError(f"{self.path}: {names} cannot be saved: {error}", trajectories) from error


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def _after_last_line(descriptor: int) -> int:
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def read_lines(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file of JSON lines. An incomplete last line is skipped.

    Raises InvalidArgument, which names the line, and OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield _trajectory(line, f"{path}:{number}")


def _trajectory(line: bytes, where: str) -> Trajectory:
    try:
        return Trajectory.from_dict(json.loads(line.decode("utf-8", "surrogatepass")))
    except (ValueError, InvalidArgument) as error:
        raise InvalidArgument(where, f"is not a trajectory: {error}") from None


def dump_trajectories(trajectories: Iterable[Trajectory], path: str | Path, format: str = "jsonl") -> None:  # noqa: A002
    """Write trajectories to a file. An existing file is replaced as a whole.

    `jsonl` writes one trajectory on each line, and `json` one list. `messages` writes only the messages, on each line
    {"request_id": ..., "messages": [...]}. `txt` is for people. Raises OSError, and InvalidArgument for another format.
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
    """Read trajectories that dump_trajectories() or AgenticRollout wrote. `messages` gives steps from messages only.

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
