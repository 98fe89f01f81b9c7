"""The tests of a task: what their reward files say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.tools.containers.sandbox import ContainerSandbox
from osmosis_grpc.tools.tasks.harbor_task import HarborTask, resolved_env

LOGS = "/logs/verifier"
TEXT, JSON = "reward.txt", "reward.json"
MOST_BYTES = 64 * 1024
SAID = 2000
"""A verdict has at most this many characters of the tests' output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tests of a task say."""

    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """All rewards, by their names."""
    problem: str = ""
    """Why there is no reward."""
    output: str = ""
    """The end of the output of the tests."""
    changed_programs: tuple[str, ...] = ()
    """Programs and libraries of the image that the agent has changed, and that the tests may have used."""


async def run_tests(task: HarborTask, box: ContainerSandbox) -> Verdict:
    """Copy the tests of a task into a box in which no agent runs, run them, and read the reward.

    Args:
        task: The task.
        box: The box with what the agent has left.

    Raises:
        SandboxError: The box failed.
    """
    await box.run(f"rm -rf {LOGS} && mkdir -p {LOGS} && chmod 777 {LOGS}")
    if not task.bundled_tests:
        await box.run("rm -rf /tests")
        await box.upload(task.tests, "/tests")
    command = f"chmod +x /tests/test.sh; exec /tests/test.sh > {LOGS}/test-stdout.txt 2>&1"
    environment = resolved_env({**task.verifier_place.env, **task.verifier_env})
    ended = await box.run(command, seconds=task.verifier_seconds, environment=environment)
    said = (await box.run(["tail", "-c", str(SAID), f"{LOGS}/test-stdout.txt"])).stdout.decode(errors="replace")
    if ended.timed_out:
        return Verdict(problem=f"the tests did not end within {task.verifier_seconds:g} s", output=said)
    for name, read in ((JSON, _of_json), (TEXT, _of_text)):
        found = await box.run(["head", "-c", str(MOST_BYTES + 1), f"{LOGS}/{name}"], output_bytes=MOST_BYTES + 1)
        if found.exit_code:
            continue
        try:
            rewards = read(found.stdout)
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


def _of_text(data: bytes) -> dict[str, float]:
    value = float(data.decode())
    if not jsontext.is_finite(value):
        raise ValueError(f"{value} is not a finite number")
    return {"reward": value}


def _of_json(data: bytes) -> dict[str, float]:
    if len(data) > MOST_BYTES:
        raise ValueError(f"has more than {MOST_BYTES} bytes")
    rewards = json.loads(data)
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for name, value in rewards.items():
        if not isinstance(value, int | float) or not jsontext.is_finite(float(value)):
            raise ValueError(f"{name} is {value!r:.100}, not a finite number")
    return {str(name): float(value) for name, value in rewards.items()}
