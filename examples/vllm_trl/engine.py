"""Starts `vllm serve` on a processor, for tokens in and tokens out over HTTP."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START = 300.0
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--skip-tokenizer-init")
"""float32, as the model that is trained; another type is faster on a GPU, and its logprobs differ more."""
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # without it, vLLM has no calls that change its weights
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # more threads on shared processors wait for each other
}


@contextlib.contextmanager
def engine(command: str, model: Path, log: Path) -> Iterator[str]:
    """Serve the model in a folder. Yields the URL when vLLM answers, and exits if it does not start.

    Args:
        command: The program `vllm`.
        model: The folder of the model. Its tokenizer is not used.
        log: The file that the output of vLLM goes to.
    """
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    options = ("--host", "127.0.0.1", "--port", str(port), "--enable-scale-out")  # the call that takes token ids
    with (
        log.open("w") as output,
        subprocess.Popen(
            [command, "serve", str(model), *options, *OPTIONS],
            env=os.environ | VARIABLES, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        ) as server,
    ):  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, server, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # vLLM has several processes


def _wait(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > end:
            sys.exit(f"vLLM did not start; the end of its log is:\n{log.read_text()[-2000:]}")
        time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False
