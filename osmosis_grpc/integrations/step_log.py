"""StepLog: one callback that logs the steps of a trainer to TensorBoard, W&B, MLflow and trackio.

    with StepLog("tensorboard", "wandb", run="run-1") as log:
        for step in range(first, last):
            loss = train(batch)
            log(step, trainer.metrics() | {"loss": loss})

The step is the trainer's own, in all libraries: not the time, and not how often something was logged. A run has a name.
A process that continues a training names the same run, and its curves go on. Each library is imported when it is named,
and configured by its own environment variables, such as WANDB_MODE, MLFLOW_TRACKING_URI and TRACKIO_DIR.
"""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self, get_args

from osmosis_grpc.protocol.errors import MissingExtraError

__all__ = ["Library", "StepLog"]

Library = Literal["tensorboard", "wandb", "mlflow", "trackio"]
"""The libraries, which are the names of their extras, too."""
Values = dict[str, float]
Sink = tuple[Callable[[int, Values], None], Callable[[], None]]
"""Logs the values of a step, and closes."""


class StepLog:
    """Logs numbers by step. Call it with a step and its values; close it at the end, or use `with`.

    Args:
        *libraries: Where to log.
        run: The name of the run. A run with this name is continued.
        project: The project in W&B and trackio, and the experiment in MLflow.
        folder: TensorBoard's folder. The run is a folder in it.
        config: The settings of a new run, for W&B and trackio, and as the parameters of MLflow.

    Raises:
        MissingExtraError: A library is not installed.
        ValueError: A library is unknown.
    """

    def __init__(
        self,
        *libraries: Library,
        run: str,
        project: str = "osmosis",
        folder: str | Path = "runs",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = [name for name in libraries if name not in get_args(Library)]
        if unknown or not libraries:
            raise ValueError(f"libraries: {unknown or 'none'} given; choose from {', '.join(get_args(Library))}")
        given = run, project, Path(folder), dict(config or {})
        self._sinks: list[Sink] = []
        for name in libraries:
            self._sinks.append(_OPENERS[name](*given))

    def __call__(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the values of a step: numbers, or whatever float() takes, such as a tensor with one element.

        Raises TypeError or ValueError for any other value, with its name.
        """
        numbers = {}
        for name, value in values.items():
            try:  # detached, because torch warns of a loss with a gradient
                numbers[name] = float(value.detach() if hasattr(value, "detach") else value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
        for log, _ in self._sinks:
            log(int(step), numbers)

    def close(self) -> None:
        """Write what is left, and end the runs. Idempotent."""
        sinks, self._sinks = self._sinks, []
        for _, close in sinks:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _library(module: str, extra: Library) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        if error.name not in (module, module.partition(".")[0]):  # the library is installed, and broken
            raise
        raise MissingExtraError(f"StepLog({extra!r})", extra) from None


def _tensorboard(run: str, project: str, folder: Path, config: dict[str, Any]) -> Sink:
    writer = _library("tensorboard.summary", "tensorboard").Writer(str(folder / run))

    def log(step: int, values: Values) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, writer.close


def _wandb(run: str, project: str, folder: Path, config: dict[str, Any]) -> Sink:
    made = _library("wandb", "wandb").init(project=project, id=run, name=run, resume="allow", config=config)
    made.define_metric("step")
    made.define_metric("*", step_metric="step")  # W&B's own count only grows, so it would drop a repeated step
    return lambda step, values: made.log({**values, "step": step}), made.finish


def _mlflow(run: str, project: str, folder: Path, config: dict[str, Any]) -> Sink:
    mlflow = _library("mlflow", "mlflow")
    client = mlflow.MlflowClient()
    known = client.get_experiment_by_name(project)
    experiment = client.create_experiment(project) if known is None else known.experiment_id
    found = client.search_runs([experiment], f'attributes.run_name = "{run}"', max_results=1)
    made = found[0] if found else client.create_run(experiment, run_name=run)
    run_id = made.info.run_id
    client.update_run(run_id, status="RUNNING")
    for name, value in config.items() if not found else ():
        client.log_param(run_id, name, value)

    def log(step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        metrics = [mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        client.log_batch(run_id, metrics=metrics)

    return log, lambda: client.set_terminated(run_id)


def _trackio(run: str, project: str, folder: Path, config: dict[str, Any]) -> Sink:
    made = _library("trackio", "trackio").init(project, name=run, resume="allow", config=config)
    return lambda step, values: made.log(values, step=step), made.finish


_OPENERS: dict[Library, Callable[[str, str, Path, dict[str, Any]], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}
