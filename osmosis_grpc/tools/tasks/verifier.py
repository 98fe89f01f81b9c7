"""Runs the tests of a task, and reads their reward files."""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.tools.containers.archive import Archive
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.docker import DockerMachine
from osmosis_grpc.tools.sandbox import SandboxError, SandboxLost
from osmosis_grpc.tools.tasks.harbor_task import HarborTask, resolved_env

LOGS = "/logs/verifier"
TEXT, JSON = "reward.txt", "reward.json"
MOST_BYTES = 64 * 1024
MOST_OF_TESTS = 1024 * 1024 * 1024
SAID = 2000
"""A verdict has at most this many bytes of the end of the tests' output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the tests of a task."""

    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """All rewards, by their names."""
    problem: str = ""
    """Why there is no reward."""
    output: str = ""
    """The end of the output of the tests."""
    changed_programs: tuple[str, ...] = ()
    """Programs and libraries of the image that the agent has changed, and that the tests may have used."""


_PREPARE = f"""[ "$1" = bundled ] || rm -rf /tests
rm -rf {LOGS} && mkdir -p {LOGS} && chmod 777 {LOGS}"""


async def run_tests(task: HarborTask, box: ContainerSandbox, machine: DockerMachine) -> Verdict:
    """Copy the tests of a task into a box in which no agent runs, run them, and read the reward.

    Args:
        task: The task.
        box: The box with the files of the agent.
        machine: The machine of the box.

    Raises:
        SandboxError: The box failed.
    """
    await machine.run_as_root(box.name, _PREPARE, "bundled" if task.bundled_tests else "")
    if not task.bundled_tests:
        async with Archive(MOST_OF_TESTS) as tests:
            await tests.fill(task.tests, "tests")
            await machine.write_archive(box.name, tests)
    await machine.run_as_root(box.name, "chmod +x /tests/test.sh")
    command = f"exec /tests/test.sh > {LOGS}/test-stdout.txt 2>&1"
    environment = resolved_env({**task.verifier_place.env, **task.verifier_env})
    ended = await box.run(command, seconds=task.verifier_seconds, environment=environment)
    said = (await box.run(["tail", "-c", str(SAID), f"{LOGS}/test-stdout.txt"])).stdout.decode(errors="replace")
    if ended.timed_out:
        return Verdict(problem=f"the tests did not end within {task.verifier_seconds:g} s", output=said)
    for name, read in ((JSON, _of_json), (TEXT, _of_text)):
        try:
            data = await _file(machine, box.name, f"{LOGS}/{name}")
            if data is None:
                continue
            rewards = read(data)
        except ValueError as error:
            return Verdict(problem=f"{name}: {error}", output=said)
        if "reward" not in rewards and len(rewards) != 1:
            text = f"{name}: none of the rewards {', '.join(sorted(rewards)) or '(none)'} has the name `reward`"
            return Verdict(rewards=rewards, problem=text, output=said)
        reward = rewards["reward"] if "reward" in rewards else next(iter(rewards.values()))
        return Verdict(reward=reward, rewards=rewards, output=said)
    return Verdict(
        problem=f"the tests wrote neither {TEXT} nor {JSON}; test.sh ended with {ended.exit_code}", output=said
    )


async def _file(machine: DockerMachine, name: str, path: str) -> bytes | None:
    """Return the content of a file of a container; None if there is none.

    Raises ValueError if it is not a plain file, or is too large.
    """
    try:
        content = await machine.read_path(name, path, MOST_BYTES)
    except SandboxLost:
        raise
    except SandboxError:
        raise ValueError(f"has more than {MOST_BYTES} bytes") from None
    if content is None:
        return None
    async with content:
        with tarfile.open(fileobj=content.opened()) as archive:
            member = archive.next()
            found = archive.extractfile(member) if member is not None and member.isreg() else None
            if found is None:
                raise ValueError("is no file")
            return found.read()


def _of_text(data: bytes) -> dict[str, float]:
    value = float(data.decode())
    if not jsontext.is_finite(value):
        raise ValueError(f"{value} is not a finite number")
    return {"reward": value}


def _of_json(data: bytes) -> dict[str, float]:
    try:
        rewards = json.loads(data)
    except RecursionError:
        raise ValueError("is nested too deep") from None
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for name, value in rewards.items():
        if not isinstance(value, int | float) or not jsontext.is_finite(value):
            raise ValueError(f"{name} is {value!r:.100}, not a finite number")
    return {str(name): float(value) for name, value in rewards.items()}
