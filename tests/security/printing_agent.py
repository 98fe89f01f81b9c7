"""An agent whose tool prints everything that a program on this machine can see of the server's process."""

import os
import subprocess
from pathlib import Path

from osmosis_grpc.agent import RolloutAgentLoop

SEEN = """
env
tr '\\0' '\\n' < /proc/$PPID/environ
tr '\\0' ' ' < /proc/$PPID/cmdline
"""


class Printing(RolloutAgentLoop):
    """Asks the model with what its tool printed."""

    name = "printing"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        printed = subprocess.run(["/bin/sh", "-c", SEEN], capture_output=True, text=True, check=True).stdout
        own = Path("/proc/self/environ").read_bytes().decode(errors="replace")
        asked = [{"role": "user", "content": f"{printed}\n{own}\n{dict(os.environ)}"}]
        await ctx.chat(asked)
        return ctx.complete(asked)


agent_loop = Printing()
