"""A batch of verl from an agent server that serves the calculator, without a GPU. Needs the extra `verl`.

python examples/verl_agent_loop.py 127.0.0.1:50051 MODEL

MODEL is a folder with a tokenizer and a config.json of transformers. A server manager with fixed replies is in place
of vLLM: it calls a tool and then gives an answer. A training run has vLLM or SGLang there, and needs only loop.yaml.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from osmosis_grpc.integrations.verl import close_trainers

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


class FixedReplies:
    """Replies with a tool call to the first prompt of a conversation, and with an answer to the second."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.seen: set[str] = set()

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        text = "#### 5" if request_id in self.seen else CALL
        self.seen.add(request_id)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.1] * len(ids), stop_reason="completed")


async def main(server: str, model: str, folder: Path) -> None:
    loop = {"name": "osmosis_grpc", "_target_": "osmosis_grpc.integrations.verl.OsmosisAgentLoop", "servers": [server]}
    (folder / "loop.yaml").write_text(json.dumps([loop]))  # JSON is YAML
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={model}"])
    OmegaConf.set_struct(config, False)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.prompt_length, rollout.response_length = "vllm", 512, 512
    rollout.agent.agent_loop_config_path = str(folder / "loop.yaml")
    rollout.agent.default_agent_loop = "osmosis_grpc"
    worker = AgentLoopWorker(config, llm_client=None)
    worker.llm_client = FixedReplies(worker.tokenizer)
    columns = {
        "raw_prompt": [{"role": "user", "content": "What is 2 + 3?"}],
        "reward_model": {"ground_truth": "5", "style": "rule"},
    }
    arrays = {name: np.empty(2, dtype=object) for name in columns}
    for name, value in columns.items():
        arrays[name][:] = [value, value]
    batch = await worker.generate_sequences(DataProto.from_dict(non_tensors=arrays, meta_info={"validate": False}))
    print("rewards", batch.batch["rm_scores"].sum(dim=1).tolist(), "turns", batch.non_tensor_batch["__num_turns__"])
    print("trained tokens", batch.batch["response_mask"].sum(dim=1).tolist())
    await close_trainers()


with tempfile.TemporaryDirectory() as made:
    asyncio.run(main(*sys.argv[1:], Path(made)))
