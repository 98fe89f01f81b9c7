"""Computes the logprobs of sampled tokens with transformers. Runs in .venv-vllm, with the folder of a model.

Reads rows from its input, [{"prompt": [...], "ids": [...], "temperature": 1.0}], and writes the logprobs of each.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main(folder: str) -> None:
    """Write the logprobs of all rows."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for row in json.load(sys.stdin):
        entered = torch.tensor([row["prompt"] + row["ids"]])
        logits = model(entered).logits[0, len(row["prompt"]) - 1 : -1]
        scores = torch.log_softmax(logits / row["temperature"], dim=-1)
        rows.append([float(score[token]) for score, token in zip(scores, row["ids"], strict=True)])
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
