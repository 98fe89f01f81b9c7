"""A rollout of an agent that is forked at turn 3 of 5: each sampled token is trained on once."""

import numpy as np

from osmosis_grpc.agentic import ReActAgent, TrajectoryClient, agent_runnable
from osmosis_grpc.server import AgentServer
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import ChatResponse, Fork, RolloutClient, TokenBlock, Trainer

QUESTION = [{"role": "user", "content": "Q"}]


@tool
async def add(a: int) -> int:
    """Adds one."""
    return a + 1


class Model:
    """Calls the tool four times, and then answers. Each reply has 3 new tokens after those of its conversation."""

    def __init__(self):
        self.next, self.asked = 1000, []

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        known = [] if request.known_ids is None else request.known_ids.tolist()
        number = request.chat_number
        text = f"Action: add(a={number})" if number < 5 else f"Final Answer: {request.rollout_id}"
        self.next += 3
        return ChatResponse(
            message={"role": "assistant", "content": text},
            prompt_ids=TokenBlock.of([*known, 7]).ids,
            tokens=TokenBlock.of([self.next, self.next + 1, self.next + 2], [-0.1] * 3),
        )


def trained(outcome):
    return [ids for s in outcome.samples["main"].segments for ids in s.ids[s.mask()].tolist()]


async def test_a_rollout_forked_at_turn_3_of_5_shares_a_prefix_that_is_trained_on_once():
    agent = ReActAgent()
    agent.set_tools([add])
    agent.calculate_step_reward = lambda step, trajectory: 0.1
    model = Model()
    async with (
        AgentServer([agent_runnable(agent)], port=0) as server,
        Trainer([server.address], model) as trainer,
        RolloutClient(server.address) as client,
    ):
        original = await trainer.rollout(rollout_id="r", messages=QUESTION)
        fork = await trainer.rollout(rollout_id="f", messages=QUESTION, fork=Fork("r", 3))
        trajectory = await TrajectoryClient(client).get("f")
    assert model.asked == [*[("r", n) for n in range(1, 6)], ("f", 4), ("f", 5)]
    for outcome in (original, fork):
        assert outcome.samples["main"].trainable, outcome.samples["main"].not_trainable_reason
        assert list(outcome.trainable_samples()) == ["main"]
    assert (len(trained(original)), len(trained(fork))) == (15, 6)
    assert not set(trained(original)) & set(trained(fork))
    [whole], [forked] = original.samples["main"].segments, fork.samples["main"].segments
    prefix = 12  # three turns: a prompt token and three sampled ones each
    assert np.array_equal(whole.ids[:prefix], forked.ids[:prefix])
    assert len(trajectory.get_tool_calls()) == 4
    assert trajectory.get_final_response() == "f"
