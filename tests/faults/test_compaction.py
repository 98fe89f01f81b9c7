"""The server is killed while its journal drops old rollouts and shrinks its file."""

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.faults.journal_process import LOGGED
from tests.processes import ROOT

KILLS = 20


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_kill_in_the_middle_of_it_costs_nothing(tmp_path):
    """Twenty times on one folder, at random moments."""
    dice, lasting, dropped = random.Random(7), set(), 0
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.faults.journal_process", str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            received = [process.stdout.readline()]
            time.sleep(dice.uniform(0.0, 0.4))  # a kill at any moment
            process.kill()
            received += process.stdout.readlines()
        assert process.returncode == -9
        lasting |= {line.split()[1] for line in received if line.endswith("\n")}
        with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = database.execute(
                "SELECT rollout_id, ended, settled, count(position) FROM rollouts LEFT JOIN events USING (sequence) "
                "GROUP BY sequence"
            ).fetchall()
            assert database.execute(
                "SELECT count(*) FROM events WHERE sequence NOT IN (SELECT sequence FROM rollouts)"
            ).fetchone() == (0,)
            (newest,) = database.execute("SELECT max(sequence) FROM rollouts").fetchone()
        for name, ended, settled, count in rows:
            if settled or ended:
                assert count == LOGGED + 2 + bool(settled), name
        assert lasting <= {name for name, _, settled, _ in rows if not settled}
        dropped = newest - len(rows)
    print(f"\n{dropped} rollouts dropped, {len(lasting)} kept over {KILLS} kills")
    assert dropped > 100
    assert len(lasting) > KILLS
