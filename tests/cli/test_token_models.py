"""The test command with a model that takes tokens over gRPC, as a user runs it."""

import asyncio
import json
import re

import pytest

from osmosis_grpc.policies import TemplateTokenizer
from tests.integrations.counting_agent import adding_model
from tests.integrations.fake_engine import FakeEngine
from tests.integrations.fake_vllm import FakeVllm
from tests.policies.model_folder import write_tokenizer

pytestmark = pytest.mark.adapters
pytest.importorskip("smg_grpc_proto")
pytest.importorskip("tokenizers")

ROW = {"user_prompt": "What is 2 + 3?", "ground_truth": "5"}
USUAL = ("test", "-m", "osmosis_grpc.testing.calculator:agent_loop", "-d", "data.jsonl")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps(ROW) + "\n")
    write_tokenizer(tmp_path / "model")
    return tmp_path


@pytest.fixture
def command(forked, folder):
    async def command(*arguments):
        return await asyncio.to_thread(forked.run, "-m", "osmosis_grpc", *arguments, cwd=folder)

    return command


def server_of(kind, engine, folder):
    from tests.integrations.fake_smg import FakeSglang, FakeVllmEngine

    kinds = {"smg-vllm": FakeVllmEngine, "smg-sglang": FakeSglang}
    made = FakeVllm(engine) if kind == "vllm-grpc" else kinds[kind](engine, folder / "model")
    return made.serving()


@pytest.mark.parametrize(("name", "kind"), [("vllm-grpc", "vllm-grpc"), ("smg", "smg-vllm"), ("smg", "smg-sglang")])
async def test_a_run_over_grpc_has_one_segment_with_tokens(command, folder, name, kind):
    """Engines of smg send their tokenizer, and the first call finds out which engine it is."""
    engine = FakeEngine(adding_model(TemplateTokenizer(folder / "model")))
    async with server_of(kind, engine, folder) as target:
        tokenizer = ["--tokenizer", "model"] if kind == "vllm-grpc" else []
        done = await command(*USUAL, "--model", f"{name}:{target}", *tokenizer, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result, summary = map(json.loads, done.stdout.splitlines()[-2:])
    assert (result["reward"], summary["passed"]) == (1.0, 1)
    assert len(engine.received) == 3, "the probe and two chats"
    shown = await command("show", "--from", "last", "--tokens", result["rollout_id"])
    assert re.search(r"segment 1: \d+ tokens, \d+ sampled, turns 1, 2\b", shown.stdout)
    assert "segment 2" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "vllm-grpc:127.0.0.1:1"], "name a folder that has it with --tokenizer"),
        (["--model", "vllm-grpc:127.0.0.1:1", "--tokenizer", "nowhere"], "nowhere/tokenizer.json"),
        (["--model", "vllm-grpc:127.0.0.1:1", "--tokenizer", "model"], "cannot be reached"),
        (["--model", "smg:127.0.0.1:1"], "cannot be reached"),
        (["--model", "vllm-grpc:localhost"], "is not HOST:PORT"),
        (["--model", "mock:echo", "--tokenizer", "model"], "--tokenizer is for a model that takes tokens"),
        (["--model", "smg:127.0.0.1:1", "--base-url", "http://127.0.0.1:1/v1"], "leave out --base-url"),
    ],
)
async def test_a_wrong_option_is_one_error_and_no_row_runs(command, folder, arguments, problem):
    done = await command(*USUAL, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in " ".join(done.stderr.split())
    assert not (folder / ".osmosis").exists()
