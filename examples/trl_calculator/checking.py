"""Questions for the calculator agent, and a GRPOTrainer that compares logprobs."""

import random
import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "learn_to_calculate"))
from questions import draw

ROWS = 512


class CheckingTrainer(GRPOTrainer):
    """Compares the recorded logprobs of each batch with those of the model before its update.

    Exits if one differs by more than `tolerance`. `differences` has the greatest difference of each step.
    """

    tolerance = 1e-4

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.differences = list[float]()

    @property
    def greatest(self) -> float:
        """The greatest difference of all steps."""
        return max(self.differences, default=0.0)

    def _compute_loss(self, model, inputs):
        keep = inputs["completion_ids"].size(1)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=attention).logits[:, -keep - 1 : -1] / self.temperature
        scores = logits.log_softmax(-1).gather(2, inputs["completion_ids"].unsqueeze(2)).squeeze(2)
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        difference = float((scores - inputs["sampling_per_token_logps"])[mask].abs().max())
        if not difference <= self.tolerance:
            sys.exit(f"a logprob differs by {difference:.3g} from the recorded one")
        self.differences.append(difference)
        return super()._compute_loss(model, inputs)


def rows(seed: int) -> Dataset:
    """Draw questions. Each is once in the dataset."""
    source = random.Random(seed)
    drawn = {question.text: question for question in (draw(source) for _ in range(ROWS))}
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": text}], "answer": str(each.answer)} for text, each in drawn.items()]
    )
