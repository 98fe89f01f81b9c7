"""A taskset of verifiers with a tool, whose answer the model has to ask for."""

import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    answer: str


class Adder(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumTask(vf.Task[Data]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for number in range(50):
            prompt = f"What is {number} + {number + 1}?"
            yield SumTask(Data(prompt=prompt, answer=str(2 * number + 1)), self.config.task)


if __name__ == "__main__":
    Adder.run()
