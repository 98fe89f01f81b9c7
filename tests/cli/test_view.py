"""The command view: its record, its pages, its end, and wrong options."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.processes import ROOT


def test_view_serves_a_folder_until_a_signal(looked_at):
    folder = looked_at.options("folder")[1]
    command = [sys.executable, "-m", "osmosis_grpc", "view", folder, "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            assert ready["event"] == "ready"
            with urllib.request.urlopen(f"{ready['url']}?state=failed", timeout=20) as page:
                assert b'data-id="bad 1"' in page.read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    {
        ("nothing",): "view: nothing: there is no such folder; name a state folder or the folder of a run\n",
        (".",): "view: .: there is no journal in it; name a state folder or the folder of a run\n",
        ("a", "--demo"): "view: a folder, --run, --follow and --demo exclude each other; name one of them\n",
        ("--token", ""): "view: the token is empty; name a secret\n",
    }.items(),
)
def test_a_wrong_option_says_what_to_name_instead(forked, tmp_path, options, message):
    done = forked.run("-m", "osmosis_grpc", "view", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_other_machines_need_a_token(forked, looked_at):
    folder = looked_at.options("folder")[1]
    done = forked.run("-m", "osmosis_grpc", "view", folder, "--host", "0.0.0.0", cwd=looked_at.folder)
    assert done.returncode == 2
    assert "so it needs a token: --token-file FILE" in done.stderr
