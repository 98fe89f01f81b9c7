"""The background work of the commands. Imported within functions, because it imports asyncio."""

from osmosis_grpc.supervise import OnFailure, job

RUN_ASIDE = job("cli.run_aside", OnFailure.REPORT, "thread")
TRAIN = job("cli.demo_trainer", OnFailure.RAISE)
WAIT = job("cli.demo_server", OnFailure.RAISE)
PULSE = job("cli.pulse", OnFailure.RESTART)
