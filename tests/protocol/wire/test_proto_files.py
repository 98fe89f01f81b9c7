"""The proto files as other languages and later releases use them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.protocol.wire.proto_comments import descriptors

BUF = str(Path(sys.executable).with_name("buf"))
OPTIONS = {
    "csharp_namespace": "Osmosis.Rollout.V1",
    "go_package": "osmosis/rollout/v1;rolloutv1",
    "java_multiple_files": True,
    "java_package": "osmosis.rollout.v1",
    "objc_class_prefix": "OSR",
    "php_namespace": "Osmosis\\Rollout\\V1",
    "ruby_package": "Osmosis::Rollout::V1",
}
STREAMED = ["TrainerFrame", "ServerFrame", "ChatResponse"]
"""The messages that streamed replies will add fields to."""


@pytest.mark.parametrize("file", descriptors(), ids=lambda file: Path(file.name).stem)
def test_each_file_has_the_options_of_every_language(file):
    assert {name: getattr(file.options, name) for name in OPTIONS} == OPTIONS
    # Without the name, Java gets classes that hide its own: Error, for error.proto.
    assert file.options.java_outer_classname == f"{Path(file.name).stem.title()}Proto"


@pytest.mark.parametrize("name", STREAMED)
def test_numbers_are_reserved_for_streamed_replies(name):
    (message,) = [message for file in descriptors() for message in file.message_type if message.name == name]
    assert [(each.start, each.end - 1) for each in message.reserved_range] == [(20, 29)]
    assert "`chat_delta` will announce" in " ".join(
        Path(ROOT / "proto" / _file_of(name)).read_text().replace("//", "").split()
    )


def _file_of(name: str) -> str:
    return next(file.name for file in descriptors() if any(message.name == name for message in file.message_type))


def breaking(proto: Path) -> subprocess.CompletedProcess:
    """Compares proto files with the image of the release."""
    image = ROOT / "proto" / "image.binpb"
    command = [BUF, "breaking", ".", "--against", str(image)]
    return subprocess.run(command, cwd=proto, capture_output=True, text=True, check=False)


def test_a_change_that_breaks_the_release_is_refused(tmp_path):
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    assert breaking(tmp_path).stdout == ""
    path = tmp_path / "proto" / "osmosis" / "rollout" / "v1" / "error.proto"
    text = path.read_text()
    path.write_text(text.replace("  int32 code = 1;", "  int64 code = 1;"))
    assert 'changed type from "int32" to "int64"' in breaking(tmp_path).stdout
    path.write_text(text + "\n// A new message.\nmessage Added {}\n")
    assert breaking(tmp_path).stdout == "", "an addition breaks nothing"
