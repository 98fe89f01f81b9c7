"""Real vLLM servers for tests, in the environment of `make test-vllm`."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import quiet_port
from tests.waiting import wait_until

HOME = Path(__file__).parents[2] / ".venv-vllm"
MODELS = HOME / "models"
CONTEXT = 2048
START = 300.0
"""A server may take so many seconds to start on a busy machine."""
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    # On shared processors, more threads wait for each other: with two there is less than one token in a second.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT))
OPTIONS += ("--logprobs-mode", "processed_logprobs", "--served-model-name", "tiny")


def ready(url):
    """Whether a server answers over HTTP."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False


class Engine:
    """One `vllm serve`. With `rust` it has the Rust frontend, which has the gRPC service, too."""

    def __init__(self, folder, log, *, rust=False):
        self._folder, self._log, self._rust = folder, log, rust
        self.port, self.grpc_port = quiet_port(), quiet_port()
        self.url, self.target = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.grpc_port}"
        self._process = None

    def start(self):
        """Return when the server answers."""
        options = [*OPTIONS, "--enable-scale-out", "--port", str(self.port)]
        variables = os.environ | VARIABLES
        if self._rust:
            options += ["--grpc-port", str(self.grpc_port)]
            variables |= {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(HOME / "vllm" / "vllm-rs")}
        self._serve(options, variables, lambda: ready(self.url))

    def _serve(self, options, variables, answers):
        command = [HOME / "bin" / "vllm", "serve", self._folder, *options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        wait_until(lambda: self._alive() and answers(), f"vLLM is ready; see {self._log}", timeout=START)

    def kill(self):
        """End all processes of the server at once, as a crash of its machine does."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def post(self, path, body=None):
        """Send a call without this project's code. Returns its JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def running(self):
        """How many requests the engine samples or holds, by its own metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))

    def _alive(self):
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        return True


class SmgEngine(Engine):
    """One `vllm serve --grpc`: the service of smg-grpc-servicer, which has no HTTP and no call that controls vLLM."""

    def start(self):
        """Return when the service answers."""
        options = [*OPTIONS, "--grpc", "--host", "127.0.0.1", "--port", str(self.grpc_port)]
        self._serve(options, os.environ | VARIABLES, self._serves)

    def _serves(self):
        """Whether it answers the standard health check, without this project's code."""
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with grpc.insecure_channel(self.target) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING


def recomputed(folder, rows):
    """The logprobs of sampled tokens by transformers. A row is a prompt, the sampled ids and the temperature."""
    sent = [{"prompt": list(prompt), "ids": list(ids), "temperature": heat} for prompt, ids, heat in rows]
    made = subprocess.run(
        [HOME / "bin" / "python", Path(__file__).with_name("recompute.py"), folder],
        input=json.dumps(sent), capture_output=True, text=True, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return json.loads(made.stdout)
