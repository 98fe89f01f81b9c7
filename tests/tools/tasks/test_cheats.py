"""What an agent leaves behind to get a reward, and what the tests of its task find."""

import asyncio

import pytest

from osmosis_grpc.tools.tasks import TaskBoxes

pytestmark = [pytest.mark.docker, pytest.mark.slow]

WRITES = "#!/bin/sh\nif {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
GOOD = WRITES.format(check='python3 -c \'assert open("/app/out.txt").read().strip() == "good"\'')
FAILS = WRITES.format(check="python3 -c 'raise SystemExit(1)'")
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
ONE, ALL = 'artifacts = ["/app/out.txt"]\n', 'artifacts = ["/app"]\n'
TRUE = "printf '#!/bin/sh\\nexit 0\\n' > {0}; chmod 755 {0}; "
LEFT = {
    "a file beside the artifacts": (
        ONE + SEPARATE,
        "d=/tmp/osmosis-artifacts/usr/local/bin; mkdir -p $d; " + TRUE.format("$d/python3") + "echo bad > out.txt",
        GOOD,
    ),
    "a tar that adds files": (
        ONE + SEPARATE,
        "mkdir -p /tmp/z/usr/local/bin; " + TRUE.format("/tmp/z/usr/local/bin/python3") + "mv /bin/tar /bin/tar.real; "
        "printf '#!/bin/sh\\nexec tar.real -C /tmp/z -cf - .\\n' > /bin/tar; chmod 755 /bin/tar; echo bad > out.txt",
        GOOD,
    ),
    "a link to the expected output": (
        ALL + SEPARATE,
        "ln -sf ../tests/test.sh out.txt",
        WRITES.format(check="cmp -s /app/out.txt /tests/test.sh"),
    ),
    "reward files of root, and tests of another user": (
        "[verifier]\nuser = 65534\n",
        "mkdir -p /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt",
        "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n",
    ),
    "a folder of logs that is a link": (
        "",
        "rm -rf /logs; mkdir -p /app/verifier; echo 1 > /app/verifier/reward.txt; ln -s /app /logs",
        FAILS,
    ),
}
LOADED = {
    "/usr/local/bin/python3": TRUE.format("/usr/local/bin/python3"),
    "/root/.local/lib/python3.11/site-packages/usercustomize.py": (
        "d=/root/.local/lib/python3.11/site-packages; mkdir -p $d; echo 'import os; os._exit(0)' > $d/usercustomize.py"
    ),
    "/usr/bin/python3": "rm /usr/bin/python3; " + TRUE.format("/usr/bin/python3"),
}


@pytest.fixture
def judged(tmp_path, machine):
    """Return the verdict of a task after a command of its agent."""

    async def judge(toml, left, tests):
        top = tmp_path / "task"
        for part, name, text in (
            (".", "task.toml", toml),
            (".", "instruction.md", "Write out.txt."),
            ("environment", "Dockerfile", "FROM osmosis-test-base\nWORKDIR /app\nRUN echo old > /app/old.txt\n"),
            ("tests", "test.sh", tests),
        ):
            (top / part).mkdir(parents=True, exist_ok=True)
            (top / part / name).write_text(text)
        async with machine() as made:
            boxes = TaskBoxes(top, made)
            (task,) = boxes.tasks.values()
            async with boxes.open(task) as box:
                assert (await box.run(["sh", "-c", left])).exit_code == 0
                return await asyncio.wait_for(boxes.verify(task, box), 120)

    return judge


@pytest.mark.parametrize("kind", LEFT)
async def test_what_an_agent_leaves_for_the_tests_gives_no_reward(judged, kind):
    verdict = await judged(*LEFT[kind])
    assert (verdict.reward, verdict.problem) == (0.0, "")


async def test_a_folder_of_artifacts_is_as_the_agent_left_it(judged):
    left = "rm old.txt; echo good > real.txt; ln -s real.txt out.txt; chmod 600 real.txt"
    check = WRITES.format(check='[ ! -e /app/old.txt ] && [ "$(cat /app/out.txt)" = good ]')
    verdict = await judged(ALL + SEPARATE + "user = 65534\n", left, check)
    assert (verdict.reward, verdict.output) == (1.0, "")


@pytest.mark.parametrize("path", LOADED)
async def test_a_program_that_the_tests_load_is_reported(judged, path):
    verdict = await judged("", LOADED[path], FAILS)
    assert verdict.changed_programs == (path,)


async def test_new_programs_and_packages_are_not_reported(judged):
    left = "d=/usr/local/lib/python3.11/dist-packages/made; mkdir -p $d; echo > $d/a.py; echo > /usr/bin/made"
    verdict = await judged("", left, FAILS)
    assert (verdict.reward, verdict.changed_programs) == (0.0, ())


@pytest.mark.parametrize(
    "written",
    [
        "printf '{\"reward\": 1%0400d}' 0 > reward.json",
        "python3 -c 'print(\"[\" * 30000)' > reward.json",
        "echo '{\"reward\": NaN}' > reward.json",
        'echo \'{"a": 1, "b": 2}\' > reward.json',
        "printf '' > reward.txt",
        "mkfifo reward.txt",
        "ln -s /app/old.txt reward.txt",
        "head -c 100000 /dev/zero > reward.json",
        "true",
    ],
)
async def test_a_file_that_is_no_reward_is_a_problem_and_no_reward(judged, written):
    verdict = await judged("", "echo 1 > /app/old.txt", f"#!/bin/sh\ncd /logs/verifier\n{written}\n")
    assert verdict.reward is None
    assert verdict.problem
