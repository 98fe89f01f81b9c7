"""Make the Python stubs from proto/ and PEERS, or with --check see that the committed ones are fresh.

grpcio-tools 1.74.0 makes code for protobuf 6.31.1, which loads on protobuf 6.31 to 7.x;
newer tools make code that protobuf 6 refuses. It needs another protobuf than the project
may be developed with, so it lives in an environment of its own, .venv-tools.
"""

import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv-tools"
PACKAGE = "osmosis_grpc.protocol._gen"
STUBS = ROOT / "osmosis_grpc" / "protocol" / "_gen"
PEERS = ("osmosis_grpc/integrations/vllm_grpc/vllm_messages.proto",)
"""The protos of other projects' services. Their stubs are beside them, and their methods are in Python."""
_IMPORT = re.compile(r"(?<=^from )(?=osmosis\.rollout)", re.MULTILINE)
_MODULE = re.compile(r"(?<![\w./])osmosis\.rollout\.v1\b")
"""The generated modules, as the generated code names them: they live below PACKAGE instead."""


def tools_python() -> str:
    """The interpreter of the tools' environment, made if it is missing or outdated."""
    wanted = (ROOT / "scripts" / "tools.txt").read_text()
    python, stamp = TOOLS / "bin" / "python", TOOLS / "tools.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(ROOT / "scripts" / "tools.txt")], check=True)
        stamp.write_text(wanted)
    return str(python)


def compile_protos(folder: Path, protos: Iterable[str], out: Path, kinds: Iterable[str]) -> None:
    """Run protoc for files below `folder`. `kinds` are the stubs to make."""
    plugins = [f"--plugin={name}={TOOLS / 'bin' / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    outputs = [f"--{kind}_out={out}" for kind in kinds]
    protoc = [tools_python(), "-m", "grpc_tools.protoc", f"--proto_path={folder}", *plugins, *outputs]
    subprocess.run([*protoc, *protos], check=True, stderr=subprocess.PIPE)


def generate(out: Path) -> None:
    """Write the stubs of every file of proto/ below `out`."""
    protos = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto").rglob("*.proto"))
    compile_protos(ROOT / "proto", protos, out, ("python", "grpc_python", "mypy", "mypy_grpc"))
    for path in sorted(out.rglob("*_pb2*.py*")):
        text = path.read_text()
        if path.name.endswith(("_grpc.py", "_grpc.pyi")) and "Stub" not in text:
            path.unlink()  # a proto file without a service
            continue
        path.write_text(
            _MODULE.sub(rf"{PACKAGE}.\g<0>", text) if path.suffix == ".pyi" else _IMPORT.sub(PACKAGE + ".", text)
        )
    for folder in (out, *(p for p in out.rglob("*") if p.is_dir())):
        (folder / "__init__.py").write_text("")


def copy_peers(made: Path) -> None:
    """Put the stubs of PEERS beside their protos."""
    for path in made.rglob("*_pb2.py*"):
        shutil.copyfile(path, ROOT / path.relative_to(made))


def stale_stubs(out: Path, peers: Path) -> list[str]:
    """Return the paths of committed stubs that are not the made ones."""
    made = {str(p.relative_to(out)) for p in out.rglob("*.py*")}
    kept = {str(p.relative_to(STUBS)) for p in STUBS.rglob("*.py*") if "__pycache__" not in p.parts}
    _, differ, missing = filecmp.cmpfiles(out, STUBS, made, shallow=False)
    made_peers = [str(p.relative_to(peers)) for p in peers.rglob("*_pb2.py*")]
    _, differ_peers, missing_peers = filecmp.cmpfiles(peers, ROOT, made_peers, shallow=False)
    own = (f"osmosis_grpc/protocol/_gen/{name}" for name in {*differ, *missing, *(kept - made)})
    return sorted([*own, *differ_peers, *missing_peers])


def main(check: bool) -> int:
    """Write the stubs. With `check`, name the stale ones instead, and return 1 if there are any."""
    with tempfile.TemporaryDirectory() as scratch:
        out, peers = Path(scratch) / "_gen", Path(scratch) / "peers"
        out.mkdir()
        peers.mkdir()
        generate(out)
        compile_protos(ROOT, PEERS, peers, ("python", "mypy"))
        if not check:
            shutil.rmtree(STUBS, ignore_errors=True)
            shutil.copytree(out, STUBS)
            copy_peers(peers)
            return 0
        stale = stale_stubs(out, peers)
        for name in stale:
            print(f"{name} is not what its proto says: run make generate", file=sys.stderr)
        return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
