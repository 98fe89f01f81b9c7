"""A taskset of verifiers whose reward goes wrong in the way of its option `how`."""

import asyncio

import verifiers.v1 as vf

__all__ = ["Wrong"]


class WrongConfig(vf.TaskConfig):
    how: str = ""


class WrongTask(vf.Task[vf.TaskData, vf.State, WrongConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        match self.config.how:
            case "raises":
                raise ValueError("no judge")
            case "never_ends":
                await asyncio.Event().wait()
        return {"nan": float("nan"), "list": [1.0], "none": None, "text": "much"}[self.config.how]


class TasksetConfig(vf.TasksetConfig):
    task: WrongConfig = WrongConfig()


class Wrong(vf.Taskset[WrongTask, TasksetConfig]):
    def load(self):
        yield WrongTask(vf.TaskData(prompt="Say something."), self.config.task)
