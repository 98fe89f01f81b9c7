"""An agent that leaves processes behind: one by os.fork(), one that runs another program and wants all descriptors."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

from osmosis_grpc.agent import RolloutAgentLoop


def sockets():
    """The local ports of this process's sockets, and which of them listen."""
    ports, listening = [], []
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=int(name))
        except OSError:
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6):
            ports.append(found.getsockname()[1])
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.append(found.getsockname()[1])
        found.detach()
    return {"ports": ports, "listening": listening}


class Forking(RolloutAgentLoop):
    """Writes into the folder of the request's metadata what the forked child has, and the ids of both."""

    name = "forking"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        folder = Path(ctx.request.metadata["folder"])
        own = sockets()
        forked = os.fork()
        if not forked:
            (folder / "child.json").write_text(json.dumps(sockets()))
            time.sleep(600)
            os._exit(0)
        program = subprocess.Popen(["sleep", "600"], close_fds=False)
        reported = {"parent": own, "children": [forked, program.pid]}
        (folder / "new").write_text(json.dumps(reported))
        (folder / "new").rename(folder / "parent.json")
        return ctx.complete([])


agent_loop = Forking()
