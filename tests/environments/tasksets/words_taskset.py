"""A taskset of verifiers: one question, a weighted reward and a metric."""

import verifiers.v1 as vf

__all__ = ["Words"]


class Data(vf.TaskData):
    answer: str


class WordsTask(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(self.data.answer == trace.last_reply)

    @vf.reward
    async def short(self, trace) -> float:
        return 1 / (1 + len(trace.last_reply))

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class Words(vf.Taskset[WordsTask, vf.TasksetConfig]):
    def load(self):
        for number in range(50):
            yield WordsTask(Data(prompt=f"Say {number}.", answer=str(number)), self.config.task)
