"""A short part of the example that learns: real torch, a real agent server, and the check of its logprobs.

`make learn` runs all of it.
"""

import os
import re
import sys

import pytest

from tests.processes import ROOT, run

pytestmark = pytest.mark.adapters
FOLDER = ROOT / "examples" / "learn_to_calculate"
WORKERS = os.environ.get("OSMOSIS_ROLLOUT_SERVER_WORKERS", "1")
NAMES = ("grpo", "model", "vocabulary", "questions", "warm_up")


@pytest.fixture
def example(monkeypatch):
    """The example's modules, imported as its program imports them."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: __import__(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name)


@pytest.mark.timeout(280)
def test_recomputed_logprobs_equal_the_recorded_ones(tmp_path):
    pytest.importorskip("torch")
    options = ("--batches", "2", "--warm-up", "40", "--workers", WORKERS)
    done = run(str(FOLDER / "learn.py"), *options, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"batch +\d+  mean reward [\d.]+  greatest difference of logprobs (\S+)", done.stdout)
    assert len(found) == 2
    assert all(float(difference) <= 1e-4 for difference in found)
    assert (tmp_path / "learn.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["learn.png"], "it leaves nothing else behind"


def test_other_logprobs_end_the_training(example):
    import torch

    grpo = example["grpo"]
    recorded = torch.tensor([-0.5, -1.0])
    assert grpo.check_logprobs(recorded + 5e-5, recorded) <= 1e-4
    for wrong in (recorded + torch.tensor([0.0, 2e-4]), recorded * float("nan")):
        with pytest.raises(grpo.WrongData):
            grpo.check_logprobs(wrong, recorded)
    with pytest.raises(grpo.WrongData, match="no sampled tokens"):
        grpo.check_logprobs(recorded[:0], recorded[:0])


def test_tokens_that_follow_have_the_logprobs_of_whole_rows(example):
    import torch

    torch.manual_seed(0)
    model = example["model"].Model(20)
    ids = torch.randint(20, (1, 12))
    whole = example["model"].token_logprobs(model, ids)[0]
    logits, cache = model(ids[:, :5])
    for place in range(5, 12):
        found = torch.log_softmax(logits[0, -1], dim=-1)[ids[0, place]]
        assert torch.allclose(found, whole[place], atol=1e-5)
        logits, cache = model(ids[:, place : place + 1], cache)


def test_a_written_conversation_masks_what_the_assistant_writes(example):
    tokenizer = example["vocabulary"].Tokenizer()
    question = example["questions"].Question(("add", "multiply"), (2, 3, 4))
    assert (question.text, question.answer) == ("What is (2 + 3) * 4?", 20.0)
    ids, mask = example["warm_up"].masked(tokenizer, example["warm_up"].written(question, question.steps))
    written = tokenizer.decode([number for number, mine in zip(ids, mask, strict=True) if mine])
    call = '<tool_call>\n{"name": "%s", "arguments": {"a": %s, "b": %s}}\n</tool_call><|im_end|>'
    assert written == call % ("add", "2", "3") + call % ("multiply", "5.0", "4") + "#### 20.0<|im_end|>"
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
