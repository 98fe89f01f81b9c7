"""StepLog with the real libraries: what each has stored after a training that was continued."""

import struct
import sys
from pathlib import Path

import pytest

from osmosis_grpc.integrations.step_log import StepLog
from tests.processes import run

pytestmark = pytest.mark.trainers
FIRST = """
from osmosis_grpc.integrations.step_log import StepLog

log = StepLog({library!r}, run="run-1", project="calculator", folder="curves", config={{"rate": 0.1}})
log(0, {{"loss": 1.0, "failures/agent/AGENT_EXCEPTION": 2}})
log(7, {{"loss": 0.5}})
log.close()
"""
SECOND = """
from osmosis_grpc.integrations.step_log import StepLog

with StepLog({library!r}, run="run-1", project="calculator", folder="curves") as log:
    log(7, {{"loss": 0.5}})
    log(9, {{"loss": 0.25}})
"""
LOSS = [(0, 1.0), (7, 0.5), (7, 0.5), (9, 0.25)]


@pytest.fixture
def logged(tmp_path, monkeypatch):
    """Log in two processes, one after the other, as a trainer that was killed at step 7 and continues from 6."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))

    def log(library):
        for program in (FIRST, SECOND):
            done = run("-c", program.format(library=library), cwd=tmp_path, timeout=100)
            assert done.returncode == 0, done.stdout + done.stderr

    return log


@pytest.mark.timeout(250)
def test_tensorboard(logged, tmp_path):
    logged("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(tmp_path / "curves" / "run-1"))
    found.Reload()
    assert [(each.step, float(make_ndarray(each.tensor_proto))) for each in found.Tensors("loss")] == LOSS
    assert [each.step for each in found.Tensors("failures/agent/AGENT_EXCEPTION")] == [0]


@pytest.mark.timeout(250)
def test_mlflow(logged):
    logged("mlflow")
    import mlflow

    client = mlflow.MlflowClient()
    (made,) = client.search_runs([client.get_experiment_by_name("calculator").experiment_id])
    assert (made.info.run_name, made.info.status, made.data.params) == ("run-1", "FINISHED", {"rate": "0.1"})
    assert [(each.step, each.value) for each in client.get_metric_history(made.info.run_id, "loss")] == LOSS
    assert made.data.metrics["failures/agent/AGENT_EXCEPTION"] == 2


@pytest.mark.timeout(250)
def test_trackio(logged):
    logged("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("calculator") == ["run-1"]
    found = SQLiteStorage.get_logs("calculator", "run-1")
    assert [(each["step"], each["loss"]) for each in found] == LOSS
    assert found[0]["failures/agent/AGENT_EXCEPTION"] == 2


@pytest.mark.timeout(250)
def test_wandb(logged, tmp_path):
    logged("wandb")
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-run-1.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 2
    rows = [row for path in files for row in history_of(path)]
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == LOSS
    assert rows[0]["failures/agent/AGENT_EXCEPTION"] == "2"


def history_of(path: Path) -> list[dict[str, str]]:
    """The rows of a file of W&B: records of LevelDB's log in one block, each a message of W&B."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, rows = path.read_bytes(), 7, []
    assert len(data) < 1 << 15
    while place + 7 <= len(data):
        length = struct.unpack_from("<H", data, place + 4)[0]
        record = Record.FromString(data[place + 7 : place + 7 + length])
        if record.HasField("history"):
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
        place += 7 + length
    return rows


@pytest.mark.timeout(250)
def test_several_at_once_take_numbers_of_every_kind(logged, tmp_path):
    import numpy as np
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert "torch" not in sys.modules
    with StepLog("tensorboard", "mlflow", run="run-2", folder=tmp_path / "curves") as log:
        log(np.int64(3), {"loss": np.float32(0.5), "true": True})
    found = EventAccumulator(str(tmp_path / "curves" / "run-2"))
    found.Reload()
    assert [each.step for each in found.Tensors("true")] == [3]
