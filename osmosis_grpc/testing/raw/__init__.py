"""Scripted peers to test an implementation with: a trainer for an agent server, and an agent server for a trainer.

They send and record single frames over the generated stubs. They share no code with osmosis_grpc.trainer,
osmosis_grpc.server, and the frame streams of osmosis_grpc.network. Use `trainer_frames` and `server_frames` to build
frames.
"""

from osmosis_grpc.testing.raw import server_frames, trainer_frames
from osmosis_grpc.testing.raw.connections import RawListener
from osmosis_grpc.testing.raw.peers import RawAgentServer, RawTrainer, listen_as_agent_server, listen_as_trainer
from osmosis_grpc.testing.raw.stream import RawStream, detail_of, field_of

__all__ = [
    "RawAgentServer",
    "RawListener",
    "RawStream",
    "RawTrainer",
    "detail_of",
    "field_of",
    "listen_as_agent_server",
    "listen_as_trainer",
    "server_frames",
    "trainer_frames",
]
