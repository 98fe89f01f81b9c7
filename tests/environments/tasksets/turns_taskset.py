"""A taskset of verifiers with an environment of its own, which talks with the model for several turns."""

import verifiers.v1 as vf

__all__ = ["Ladder", "LadderEnv"]


class Data(vf.TaskData):
    goal: int


class LadderTask(vf.Task[Data]):
    pass


class LadderConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class LadderEnv(vf.Env[LadderConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, height = await interaction.turn(), 0
            while not segment.terminated and height < task.data.goal:
                height += len(segment.last_reply)
                if height >= task.data.goal:
                    break
                segment = await interaction.turn(f"You are at {height}.")
        interaction.trace.record_reward("height", float(height), 1.0)


class Ladder(vf.Taskset[LadderTask, vf.TasksetConfig]):
    def load(self):
        for number in range(50):
            yield LadderTask(Data(prompt=f"Climb to {number + 3}.", goal=number + 3), self.config.task)
