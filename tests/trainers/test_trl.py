"""TRL's GRPOTrainer trains on the rollouts of an agent server in another process. Run by `make test-trainers`."""

import logging

import numpy as np
import pytest

from osmosis_grpc.integrations.trl import TrlRollouts, outcome_reward
from osmosis_grpc.policies import FamilyRenderer, ScriptedPolicy, ToolCallingMock
from osmosis_grpc.policies.formula import VOCABULARY
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import ChatRequest
from tests.processes import server_process
from tests.trainers import tiny_model

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
trl = pytest.importorskip("trl")

QWEN = ["<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"
QUESTIONS = {"What is 2 + 3?": "5", "What is (2 + 3) * (4 + 5)?": "45", "What is 7 / 2?": "3.5", "What is 4 * 5?": "20"}
ROWS = [{"prompt": [{"role": "user", "content": text}], "answer": answer} for text, answer in QUESTIONS.items()]


@pytest.fixture(scope="module")
def server():
    with server_process("-m", CALCULATOR) as (_, address):
        yield address


class Recording(trl.GRPOTrainer):
    """Keeps the inputs of every loss."""

    def _compute_loss(self, model, inputs):
        self.inputs = [*getattr(self, "inputs", []), inputs]
        return super()._compute_loss(model, inputs)


def grpo_trainer(
    folder, rollouts, *, rows=ROWS, tokens=VOCABULARY, reward_funcs=outcome_reward, tokenizer=None, **options
):
    from datasets import Dataset

    dataset = Dataset.from_list(rows)
    defaults = {"max_steps": 1, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 64}
    args = trl.GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        learning_rate=1e-3,
        **(defaults | options),
    )
    return Recording(
        model=tiny_model.model(tokens),
        processing_class=tokenizer or tiny_model.tokenizer(),
        args=args,
        train_dataset=dataset,
        eval_dataset=dataset,
        rollout_func=rollouts,
        reward_funcs=reward_funcs,
    )


def rows_of(outcomes):
    """Returns the row of each outcome with one segment: prompt, completion, mask, logprobs."""
    found = []
    for outcome in outcomes:
        (segment,) = outcome.samples["main"].segments
        prompt = int(np.argmax(segment.mask()))
        parts = segment.ids, segment.mask().astype(int), segment.aligned_logprobs()
        found.append((segment.ids[:prompt].tolist(), *(part[prompt:].tolist() for part in parts)))
    return found


def rows_of_loss(inputs):
    """Returns the rows of a loss without their padding."""
    for index in range(len(inputs["prompt_ids"])):
        prompt, completion = inputs["prompt_mask"][index].bool(), inputs["completion_mask"][index].bool()
        yield (
            inputs["prompt_ids"][index][prompt].tolist(),
            inputs["completion_ids"][index][completion].tolist(),
            inputs["tool_mask"][index][completion].tolist(),
            inputs["sampling_per_token_logps"][index][completion].tolist(),
        )


def test_the_loss_has_the_tokens_masks_logprobs_and_rewards_of_the_outcomes(server, tmp_path):
    with TrlRollouts([server], policy=ToolCallingMock(), label="answer") as rollouts:
        trainer = grpo_trainer(tmp_path, rollouts)
        trainer.train()
    outcomes = rollouts.outcomes
    assert [outcome.status for outcome in outcomes] == [OutcomeStatus.COMPLETED] * 8
    expected = rows_of(outcomes)
    assert sorted(row for inputs in trainer.inputs for row in rows_of_loss(inputs)) == sorted(expected)
    assert any(0 in mask and 1 in mask for _, _, mask, _ in expected)
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert logged == [pytest.approx(np.mean([outcome.reward for outcome in outcomes]))]


def test_the_members_of_a_group_have_one_prompt_and_one_label(server, tmp_path):
    seen = []

    class Seeing(ToolCallingMock):
        async def __call__(self, request: ChatRequest, /):
            seen.append(request)
            return await super().__call__(request)

    with TrlRollouts([server], policy=Seeing(), label="answer") as rollouts:
        grpo_trainer(tmp_path, rollouts, temperature=0.7, top_k=5).train()
    groups = {}
    for outcome in rollouts.outcomes:
        groups.setdefault(outcome.group.id, []).append(outcome)
    assert [[outcome.group.index for outcome in group] for group in groups.values()] == [[0, 1, 2, 3]] * 2
    for group in groups.values():
        assert len({outcome.messages[0]["content"] for outcome in group}) == 1
    assert all(request.params["temperature"] == 0.7 and request.params["top_k"] == 5 for request in seen)
    assert all(request.params["max_tokens"] == 64 and request.version == "0" for request in seen)


def test_a_failed_rollout_has_no_reward_and_is_not_trained_on(server, tmp_path, caplog):
    def replies(request):
        if request.rollout_id.endswith("-1"):
            raise ValueError("the model is gone")
        return "#### 5" if request.rollout_id.endswith("-0") else "#### 6"

    rewards = []

    def watching(**columns):
        rewards.extend(columns["rollout_reward"])
        return outcome_reward(**columns)

    rows = ROWS[:1]
    with TrlRollouts([server], policy=ScriptedPolicy(replies), label="answer", retries=0) as rollouts:
        trainer = grpo_trainer(tmp_path, rollouts, rows=rows, per_device_train_batch_size=4, reward_funcs=watching)
        trainer.train()
    assert rewards == [1.0, None, 0.0, 0.0]
    (inputs,) = trainer.inputs
    untrained = [row for row, (_, _, mask, _) in enumerate(rows_of_loss(inputs)) if not any(mask)]
    assert len(untrained) == 1
    assert inputs["advantages"][untrained[0]] == 0.0
    others = [float(value) for row, value in enumerate(inputs["advantages"]) if row not in untrained]
    assert sum(others) == pytest.approx(0, abs=1e-5)  # the mean of three rewards, not of four
    assert "1 of 4 rollouts have no reward" in caplog.text
    assert "the model is gone" in caplog.text
    assert rollouts.counts["failed"] == 1
    (logged,) = [entry for entry in trainer.state.log_history if "rollouts/failed" in entry]
    assert logged["rollouts/failed"] == 1


def test_other_segments_of_a_rollout_are_counted_and_the_warning_says_why(server, tmp_path, caplog):
    class Drifting(ToolCallingMock):
        async def __call__(self, request: ChatRequest, /):
            reply = await super().__call__(request)
            changed = reply.prompt_ids + (request.chat_number > 1)  # as if rendered anew with another template
            return type(reply)(message=reply.message, tokens=reply.tokens, prompt_ids=changed.astype("<u4"))

    with TrlRollouts([server], policy=Drifting(), label="answer") as rollouts:
        trainer = grpo_trainer(tmp_path, rollouts)
        trainer.train()
    segments = [outcome.samples["main"].segments for outcome in rollouts.outcomes]
    left_out = [sorted(segment.sampled for segment in each)[:-1] for each in segments]
    assert rollouts.counts["segments_left_out"] == sum(map(len, left_out)) > 0
    assert rollouts.counts["tokens_left_out"] == sum(map(sum, left_out))
    assert caplog.text.count("and TRL trains on one") == 1
    (logged,) = [entry for entry in trainer.state.log_history if "rollouts/tokens_left_out" in entry]
    assert logged["rollouts/tokens_left_out"] == rollouts.counts["tokens_left_out"]
    trained = sum(sum(mask) for inputs in trainer.inputs for _, _, mask, _ in rows_of_loss(inputs))
    assert trained == sum(segment.sampled for each in segments for segment in each) - sum(map(sum, left_out))


def test_a_batch_without_a_trainable_rollout_stops_the_training(server, tmp_path):
    def fails(request):
        raise ValueError("the model is gone")

    with (
        TrlRollouts([server], policy=ScriptedPolicy(fails), label="answer", retries=0) as rollouts,
        pytest.raises(ValueError, match="the model is gone"),
    ):
        grpo_trainer(tmp_path, rollouts).train()


def test_an_evaluation_runs_marked_rollouts(server, tmp_path):
    with TrlRollouts([server], policy=ToolCallingMock(), label="answer") as rollouts:
        metrics = grpo_trainer(tmp_path, rollouts, per_device_eval_batch_size=4, num_generations_eval=2).evaluate()
    assert all(outcome.evaluation for outcome in rollouts.outcomes)
    assert {outcome.group.size for outcome in rollouts.outcomes} == {2}
    assert 0 < metrics["eval_reward"] < 1  # the mock rounds 7 / 2


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        (ROWS, {"label": "truth"}, "train_dataset: has no column 'truth'; its columns are: prompt, answer"),
        ([*ROWS, ROWS[0] | {"answer": "6"}], {"label": "answer"}, "row 4 has the prompt of an earlier row"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused_by_name(server, tmp_path, rows, options, problem):
    rollouts = TrlRollouts([server], policy=ToolCallingMock(), **options)
    with rollouts, pytest.raises(InvalidArgument, match=problem):
        grpo_trainer(tmp_path, rollouts, rows=rows).train()


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"servers": "localhost"}, ValueError, "'localhost' is not HOST:PORT"),
        ({"servers": "127.0.0.1:1", "metadata": "topic"}, TypeError, "pass the names of columns"),
        ({"servers": "127.0.0.1:1", "lable": "answer"}, TypeError, "lable"),
        ({"servers": "127.0.0.1:1", "policy": ToolCallingMock(), "renderer": "a/model"}, TypeError, "renderer"),
    ],
)
def test_wrong_arguments_are_refused_before_the_model_is_loaded(arguments, error, problem):
    with pytest.raises(error, match=problem):
        TrlRollouts(**arguments)


def test_the_model_of_the_trainer_answers_with_exact_logprobs(server, tmp_path, caplog):
    import torch

    caplog.set_level(logging.WARNING)
    recomputed = []

    class Checking(Recording):
        def _compute_loss(self, model, inputs):
            keep = inputs["completion_ids"].size(1)
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=attention).logits[:, -keep - 1 : -1] / self.temperature
            logprobs = logits.log_softmax(-1).gather(2, inputs["completion_ids"].unsqueeze(2)).squeeze(2)
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            recomputed.append((logprobs - inputs["sampling_per_token_logps"])[mask].abs().max().item())
            return super()._compute_loss(model, inputs)

    with TrlRollouts([server], label="answer") as rollouts:
        trainer = grpo_trainer(tmp_path, rollouts, tokens=259, temperature=0.8, max_completion_length=16)
        trainer.__class__ = Checking
        trainer.train()
    assert recomputed
    assert max(recomputed) < 1e-4
    assert trainer.model.training
    assert {len(outcome.samples["main"].segments) for outcome in rollouts.outcomes} == {1}


@pytest.mark.parametrize("named", [True, False])
def test_the_model_is_asked_in_the_format_of_a_renderer_or_of_a_named_model(server, tmp_path, named):
    """Qwen 3 gets its tools as JSON in a system message; the template of the tokenizer writes only their names."""
    tokenizer = tiny_model.tokenizer(*QWEN)
    renderer = "Qwen/Qwen3-8B" if named else FamilyRenderer(tokenizer, family="qwen3")
    with TrlRollouts([server], renderer=renderer, label="answer", fields={"max_turns": 1}) as rollouts:
        trainer = grpo_trainer(tmp_path, rollouts, tokens=len(tokenizer), max_completion_length=4, tokenizer=tokenizer)
        trainer.train()
    for outcome in rollouts.outcomes:
        (segment,) = outcome.samples["main"].segments
        prompt = tokenizer.decode(segment.ids[: int(np.argmax(segment.mask()))].tolist())
        assert '{"type": "function", "function": {"name": "add"' in prompt
        assert prompt.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("name", ["", "nobody/a-model"])
def test_without_a_known_family_the_template_of_the_tokenizer_is_used(server, tmp_path, name):
    with TrlRollouts([server], renderer=name, label="answer", fields={"max_turns": 1}) as rollouts:
        grpo_trainer(tmp_path, rollouts, tokens=259, max_completion_length=4).train()
    decode = tiny_model.tokenizer().decode
    first = [each.samples["main"].segments[0].ids[:2].tolist() for each in rollouts.outcomes]
    assert set(map(decode, first)) == {"<|im_start|>s"}
