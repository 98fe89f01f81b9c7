"""Sessions of OpenEnv whose agent runs on an agent server in another process. Run by `make test-trainers`."""

import numpy as np
import pytest

from osmosis_grpc.policies import ScriptedPolicy, ToolCallingMock
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from tests.dropping import different
from tests.ports import quiet_port
from tests.processes import ROOT, run, server_process

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("openenv.core")

CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"
TASK = {"prompt": "What is (2 + 3) * (4 + 5)?", "answer": "45"}


@pytest.fixture(scope="module")
def server():
    with server_process("-m", CALCULATOR) as (_, address):
        yield address


def factory(server, policy=None, **options):
    from osmosis_grpc.integrations.openenv import OsmosisSessionFactory

    return OsmosisSessionFactory([server], policy or ToolCallingMock(), **options)


@pytest.mark.parametrize(("answer", "reward"), [("45", 1.0), ("46", 0.0)])
def test_the_trace_has_the_tokens_masks_logprobs_and_reward_of_the_outcome(server, answer, reward):
    from openenv.core.harness import TrainableSession

    with factory(server) as sessions:
        session = sessions.create(TASK | {"answer": answer}, seed=1, episode_id="e")
        assert isinstance(session, TrainableSession)
        assert session.wait_for_completion(timeout_s=60) == 0
        trace, result = session.fetch_training_trace(), session.verify([])
    outcome = session.outcome
    assert result.env_reward == outcome.reward == reward
    (segment,) = outcome.samples["main"].segments
    last = trace.turns[-1]
    ids = last.prompt_token_ids + last.completion_token_ids
    assert ids == segment.ids.tolist()
    mask, logprobs = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=np.float32)
    for turn in trace.turns:
        assert ids[: len(turn.prompt_token_ids)] == turn.prompt_token_ids
        begin, end = len(turn.prompt_token_ids), len(turn.prompt_token_ids) + len(turn.completion_token_ids)
        assert ids[begin:end] == turn.completion_token_ids
        mask[: len(turn.loss_mask)] |= np.array(turn.loss_mask, dtype=bool)
        logprobs[begin:end] = turn.per_token_logps
    assert len(trace.turns) > 2
    assert mask.tolist() == segment.mask().tolist()
    assert logprobs.tolist() == segment.aligned_logprobs().tolist()


def test_dropped_replies_and_samples_with_train_false_are_masked():
    with server_process("-m", "tests.dropping:judges") as (_, address), factory(address, different) as sessions:
        session = sessions.create({"prompt": "What is 2 + 3?"})
        assert session.wait_for_completion(timeout_s=60) == 0
        turns = session.fetch_training_trace().turns
    assert [(t.metadata["sample"], t.metadata["dropped"], sum(t.loss_mask)) for t in turns] == [
        ("main", True, 0),
        ("main", False, 3),
        ("judge", False, 0),
    ]


def test_a_failed_rollout_has_no_reward_and_no_turns(server):
    def fails(request):
        raise InvalidArgument("messages", "the model is gone")  # an answer to the agent, as every CallError

    with factory(server, ScriptedPolicy(fails)) as sessions:
        session = sessions.create(TASK)
        assert session.wait_for_completion() == 1
        assert session.fetch_training_trace().turns == []
        result = session.verify([])
    assert result.env_reward is None
    assert "the model is gone" in result.artifacts["not_trainable_reason"]


def test_mistakes_are_named(server, monkeypatch):
    from osmosis_grpc.trainer import SyncTrainer

    with factory(server) as sessions:
        with pytest.raises(InvalidArgument, match="task: has no prompt; its keys are: question"):
            sessions.create({"question": "What is 2 + 3?"})
        with pytest.raises(FailedPrecondition, match="wait_for_completion"):
            sessions.create(TASK).verify([])
    wait_for_server = SyncTrainer.wait_for_server
    monkeypatch.setattr(SyncTrainer, "wait_for_server", lambda self: wait_for_server(self, 0.3))
    address = f"127.0.0.1:{quiet_port()}"
    with factory(address) as sessions, pytest.raises(Unavailable, match=address):
        sessions.create(TASK)


def test_the_example_runs(server):
    done = run(str(ROOT / "examples" / "openenv_session.py"), server)
    assert done.returncode == 0, done.stderr
    assert "What is 2 + 3? reward 1.0 turns 2 trained tokens" in done.stdout
