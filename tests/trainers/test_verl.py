"""verl's AgentLoopWorker makes batches of the rollouts of an agent server in another process.

A server manager of the test samples the tokens, in place of vLLM's. Run by `make test-trainers`.
"""

import json

import numpy as np
import pytest

from osmosis_grpc.protocol.errors import Unavailable
from tests.ports import quiet_port
from tests.processes import ROOT, run, server_process
from tests.trainers import program, tiny_model

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("verl")

CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"
PROMPT_LENGTH, RESPONSE_LENGTH = 200, 400
QUESTIONS = {"What is 2 + 3?": "5", "What is 7 * 8?": "56", "What is 9 - 4?": "6"}
"""With their labels; the last one is wrong."""


@pytest.fixture(scope="module")
def server():
    with server_process("-m", CALCULATOR) as (_, address):
        yield address


class ServerManager:
    """Samples from a small program in place of a model. Keeps its calls."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.calls = []
        self.aborts = 0
        self.fails = False

    async def generate(self, request_id, *, prompt_ids, sampling_params, priority=0):
        from verl.workers.rollout.replica import TokenOutput

        if self.fails:
            raise RuntimeError("the replica is gone")
        ids = self.tokenizer.encode(program.reply(self.tokenizer.decode(prompt_ids)))
        reason = "completed"
        if self.aborts:
            self.aborts -= 1
            ids, reason = ids[:3], "aborted"
        begun = len(self.calls)
        output = TokenOutput(
            token_ids=ids,
            log_probs=[-0.01 * (begun + 1) - 0.001 * index for index in range(len(ids))],
            stop_reason=reason,
            extra_fields={"global_steps": 7},
        )
        self.calls.append((request_id, prompt_ids, sampling_params, output))
        return output


@pytest.fixture
async def worker(server, tmp_path, monkeypatch):
    """An AgentLoopWorker with the configuration of verl's PPO trainer, a tiny model and a ServerManager."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    from osmosis_grpc.integrations.verl import close_trainers

    tiny_model.tokenizer().save_pretrained(tmp_path / "model")
    tiny_model.model(259).save_pretrained(tmp_path / "model")
    loop = {"name": "osmosis_grpc", "_target_": "osmosis_grpc.integrations.verl.OsmosisAgentLoop", "servers": [server]}
    (tmp_path / "loop.yaml").write_text(json.dumps([loop]))

    def make(**changes):
        if changes:
            (tmp_path / "loop.yaml").write_text(json.dumps([loop | changes]))
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={tmp_path / 'model'}"])
        rollout = config.actor_rollout_ref.rollout
        OmegaConf.set_struct(config, False)
        rollout.name = "vllm"
        rollout.prompt_length, rollout.response_length = PROMPT_LENGTH, RESPONSE_LENGTH
        rollout.agent.agent_loop_config_path = str(tmp_path / "loop.yaml")
        rollout.agent.default_agent_loop = "osmosis_grpc"
        return AgentLoopWorker(config, ServerManager(tiny_model.tokenizer()))

    yield make
    await close_trainers()


def batch_of(questions, copies=1, **columns):
    from verl.protocol import DataProto

    rows = [(text, answer) for text, answer in questions.items() for _ in range(copies)]
    objects = {
        "raw_prompt": [[{"role": "user", "content": text}] for text, _ in rows],
        "reward_model": [{"ground_truth": answer, "style": "rule"} for _, answer in rows],
        **{name: [value] * len(rows) for name, value in columns.items()},
    }
    made = {}
    for name, values in objects.items():
        made[name] = np.empty(len(rows), dtype=object)
        made[name][:] = values
    return DataProto.from_dict(non_tensors=made, meta_info={"validate": False, "global_steps": 7})


@pytest.mark.row("ARL 48", "ARL 49")
async def test_the_batch_of_verl_has_the_tokens_masks_logprobs_and_rewards_of_the_rollouts(worker):
    made = worker()
    batch = await made.generate_sequences(batch_of(QUESTIONS, copies=2))
    chats = {}
    for request_id, prompt, params, output in made.llm_client.calls:
        assert params["logprobs"] is True
        assert params["temperature"] == 1.0
        chats.setdefault(request_id, []).append((prompt, output))
    assert len(chats) == 6
    assert {len(each) for each in chats.values()} == {2}  # the sticky key of both turns
    expected = set()
    for (first, call), (second, answer) in chats.values():
        assert second[: len(first) + len(call.token_ids)] == [*first, *call.token_ids]
        tool = len(second) - len(first) - len(call.token_ids)
        assert tool > 0
        response = [*second[len(first) :], *answer.token_ids]
        mask = [1] * len(call.token_ids) + [0] * tool + [1] * len(answer.token_ids)
        logprobs = [*call.log_probs, *[0.0] * tool, *answer.log_probs]
        text = made.tokenizer.decode(first)
        reward = next(float(label != "6") for question, label in QUESTIONS.items() if question in text)
        expected.add((tuple(first), tuple(response), tuple(mask), tuple(np.float32(logprobs)), reward))
    found = set()
    for index in range(len(batch)):
        row = {name: batch.batch[name][index].numpy() for name in batch.batch.keys()}  # noqa: SIM118
        prompt = row["prompts"][row["attention_mask"][:PROMPT_LENGTH] == 1]
        real = row["attention_mask"][PROMPT_LENGTH:] == 1
        parts = (row[name][real] for name in ("responses", "response_mask", "rollout_log_probs"))
        found.add((tuple(prompt), *map(tuple, parts), float(row["rm_scores"].sum())))
    assert found == expected
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [4] * 6
    assert batch.non_tensor_batch["max_global_steps"].tolist() == [7] * 6
    assert {row[-1] for row in found} == {0.0, 1.0}


async def test_an_aborted_reply_is_asked_again_and_is_one_reply(worker):
    made = worker()
    made.llm_client.aborts = 2
    batch = await made.generate_sequences(batch_of({"What is 2 + 3?": "5"}))
    calls = made.llm_client.calls
    assert [output.stop_reason for *_, output in calls] == ["aborted", "aborted", "completed", "completed"]
    sampled = [token for *_, output in calls for token in output.token_ids]
    mask = batch.batch["response_mask"][0].bool()
    assert batch.batch["responses"][0][mask].tolist() == sampled
    assert batch.batch["rm_scores"].sum() == 1.0


@pytest.mark.row("ARL 49")
async def test_gets_a_list_with_whole_numbers_as_steps(worker):
    made = worker()
    batch = batch_of({"What is 2 + 3?": "5"}, uid="abc", session_id=3, global_steps=12)
    row = {name: values[0] for name, values in batch.non_tensor_batch.items()}
    seen = []

    async def postprocess(output, validate, **kwargs):
        seen.append(output)

    made._agent_loop_postprocess = postprocess
    trajectory = {"step": 12, "sample_index": 0, "rollout_n": 0, "validate": False}
    await made._run_agent_loop({"temperature": 0.5}, trajectory, agent_name="osmosis_grpc", **row)
    ((output,),) = seen
    assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 7
    assert output.reward_score == 1.0
    fields = output.as_dict()
    assert fields["num_turns"] == 4
    assert {params["temperature"] for _, _, params, _ in made.llm_client.calls} == {0.5}


async def test_a_failed_rollout_is_an_error_and_no_row(worker):
    made = worker(retries=0)
    made.llm_client.fails = True
    with pytest.raises(RuntimeError, match="the replica is gone"):
        await made.generate_sequences(batch_of({"What is 2 + 3?": "5"}))


async def test_a_wrong_address_is_named_for_every_trajectory(worker, monkeypatch):
    from osmosis_grpc.trainer import Trainer

    wait_for_server = Trainer.wait_for_server
    monkeypatch.setattr(Trainer, "wait_for_server", lambda self: wait_for_server(self, 0.3))
    address = f"127.0.0.1:{quiet_port()}"
    with pytest.raises(Unavailable, match=address):
        await worker(servers=[address]).generate_sequences(batch_of(QUESTIONS))


def test_the_example_runs(server, tmp_path):
    tiny_model.tokenizer().save_pretrained(tmp_path)
    tiny_model.model(259).save_pretrained(tmp_path)
    done = run(str(ROOT / "examples" / "verl_agent_loop.py"), server, str(tmp_path), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rewards [1.0, 1.0] turns [4 4]" in done.stdout


async def test_trains_on_the_longest_segment_and_counts_the_others_and_v1_on_all(worker, caplog):
    from osmosis_grpc.integrations.verl import left_out

    made = worker()
    made.tokenizer.chat_template = "{{ messages | length }}\n" + tiny_model.TEMPLATE  # does not only append
    left_out.clear()
    batch = await made.generate_sequences(batch_of({"What is 2 + 3?": "5"}))
    call, answer = [output.token_ids for *_, output in made.llm_client.calls]
    mask = batch.batch["response_mask"][0].bool()
    assert batch.batch["responses"][0][mask].tolist() == call
    assert left_out == {"segments": 1, "tokens": len(answer)}
    assert "V0 of verl trains on one" in caplog.text
    seen = []

    async def postprocess(output, validate, **kwargs):
        seen.append(output)

    made._agent_loop_postprocess = postprocess
    columns = batch_of({"What is 2 + 3?": "5"}, uid="abc", session_id=0, global_steps=12).non_tensor_batch
    row = {name: values[0] for name, values in columns.items()}
    trajectory = {"step": 12, "sample_index": 0, "rollout_n": 0, "validate": False}
    await made._run_agent_loop({}, trajectory, agent_name="osmosis_grpc", **row)
    (outputs,) = seen
    assert [output.response_ids for output in outputs] == [call, answer]
    assert [output.reward_score for output in outputs] == [1.0, 1.0]
