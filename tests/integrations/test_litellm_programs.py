"""A program of `serve --command` that uses LiteLLM."""

import sys

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from tests.gateway.commands import outcome_of
from tests.integrations.strands_policy import Replies

pytestmark = pytest.mark.adapters
pytest.importorskip("litellm")

COMMAND = f"{sys.executable} agent.py"
ASK = """
import litellm

reply = litellm.completion(model="openai/policy", messages=[USER])
result(reward=float("hello" in reply.choices[0].message.content))
"""
WRONG = """
import litellm

from osmosis_grpc.rollout import register_litellm_provider

register_litellm_provider()
litellm.completion(model="osmosis/policy", messages=[USER])
"""


async def test_the_model_of_a_program_is_openai_policy(tmp_path):
    outcome = await outcome_of(tmp_path, ASK, Replies("hello"), command=COMMAND)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert (outcome.reward, len(outcome.samples["main"].segments)) == (1.0, 1)


async def test_a_program_that_asks_osmosis_policy_reads_what_to_write(tmp_path):
    outcome = await outcome_of(tmp_path, WRONG, Replies("hello"), command=COMMAND)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.splitlines()[0].endswith(
        "in a program of `serve --command` the model is openai/policy"
    )
