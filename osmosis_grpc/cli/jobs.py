"""The background work of the commands. Imported within functions, because it imports asyncio."""

from osmosis_grpc.supervise import OnFailure, job

DAEMON_THREAD = job("cli.run_in_daemon_thread", OnFailure.REPORT, "thread")
TRAIN = job("cli.demo_trainer", OnFailure.RAISE)
WAIT = job("cli.demo_server", OnFailure.RAISE)
PULSE = job("cli.pulse", OnFailure.RESTART)
