"""A server is killed within a Strands workflow that is replayable. After a restart the workflow continues."""

import asyncio

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.ports import quiet_port
from tests.processes import serving
from tests.waiting import until

pytestmark = pytest.mark.adapters
pytest.importorskip("strands")


def told(outcome):
    """What a restart must not change."""
    return {
        name: (
            [{key: message.get(key) for key in ("role", "content", "tool_calls")} for message in sample.messages],
            [(segment.ids.tobytes(), segment.logprobs.tobytes(), segment.chats) for segment in sample.segments],
            sample.reward,
        )
        for name, sample in outcome.samples.items()
    }


async def test_a_workflow_continues_after_a_kill_in_a_tool_and_no_chat_is_asked_again(tmp_path, monkeypatch):
    from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
    from tests.integrations import strands_replayable as agents

    monkeypatch.setenv(agents.GATE, str(tmp_path))
    asked = []

    def policy(request):
        asked.append((request.sample, request.chat_number))
        return agents.reply(request)

    module = "tests.integrations.strands_replayable"
    options = ("-m", module, "--state-dir", str(tmp_path / "state"), "--grpc-port", str(quiet_port()))
    with serving(*options) as (process, ready):
        async with Trainer([ready["grpc"]], policy) as trainer:
            rollout = asyncio.create_task(trainer.rollout(rollout_id="r", messages=agents.QUESTION, label="x"))
            await until((tmp_path / "waits").exists)
            process.kill()
            await asyncio.to_thread(process.wait, 60)
            (tmp_path / "go").touch()
            with serving(*options):
                outcome = await rollout
                kinds = [event.kind async for event in trainer.events("r")]
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert sum(isinstance(kind, events.Resumed) for kind in kinds) == 1
    assert sorted(asked) == [("helper", 1), ("helper", 2), *(("main-agent", n) for n in (1, 2, 3, 4))]
    undisturbed = await run_rollout(
        WorkflowRunnable(agents.Counts, grader=agents.Ends), agents.reply, agents.QUESTION, rollout_id="r", label="x"
    )
    assert told(outcome) == told(undisturbed)
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"main-agent": 1.0, "helper": 1.0}
