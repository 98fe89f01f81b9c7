"""Folders of tasks in Harbor's format, each with its box, its tests and its reward."""

from osmosis_grpc.tools.tasks.harbor_task import HarborTask, load_tasks
from osmosis_grpc.tools.tasks.task_boxes import TaskBoxes
from osmosis_grpc.tools.tasks.verifier import Verdict

__all__ = ["HarborTask", "TaskBoxes", "Verdict", "load_tasks"]
