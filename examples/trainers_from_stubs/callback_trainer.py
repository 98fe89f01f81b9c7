"""A callback trainer from generated stubs alone: it runs one rollout and prints its outcome.

python -m grpc_tools.protoc -I PROTO --python_out=. --grpc_python_out=. PROTO/osmosis/rollout/v1/*.proto
python callback_trainer.py 127.0.0.1:50051
"""

import sys
import threading
import uuid
from concurrent import futures

import grpc
from osmosis.rollout.v1 import chat_pb2, message_pb2, outcome_pb2, rollout_pb2, services_pb2_grpc, tokens_pb2

MIB = 1024 * 1024


def sample_reply(request: chat_pb2.ChatRequest) -> chat_pb2.ChatResponse:
    """Your sampler. Returns the message, its token ids and their logprobs."""
    message = message_pb2.Message(role="assistant", text="42")
    prompt = tokens_pb2.TokenBlock(ids=range(100, 100 + len(request.full.messages)))
    tokens = tokens_pb2.TokenBlock(ids=[7, 8], logprobs=[-0.1, -0.2])
    return chat_pb2.ChatResponse(message=message, finish_reason="stop", prompt=prompt, tokens=tokens)


class Trainer(services_pb2_grpc.TrainerServiceServicer):
    """Answers chats and records outcomes, each of them once."""

    def __init__(self) -> None:
        self.replies: dict[tuple[str, int, str, int], futures.Future] = {}
        self.outcomes: dict[tuple[str, int], outcome_pb2.RolloutOutcome] = {}
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def Chat(self, request: chat_pb2.ChatRequest, context: grpc.ServicerContext) -> chat_pb2.ChatResponse:
        key = (request.rollout_id, request.attempt, request.sample, request.chat_number)
        with self._lock:
            mine = key not in self.replies
            reply = self.replies.setdefault(key, futures.Future())
        if mine:  # a second request for the same chat waits for the first one's reply
            reply.set_result(sample_reply(request))
        return reply.result()

    def Complete(
        self, request: outcome_pb2.CompleteRequest, context: grpc.ServicerContext
    ) -> outcome_pb2.CompleteResponse:
        key = (request.outcome.rollout_id, request.outcome.attempt)
        with self._lock:
            mine = key not in self.outcomes
            recorded = self.outcomes.setdefault(key, request.outcome)  # on disk, in a real trainer
        self.ended.set()
        if mine:
            return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)
        same = recorded.result_id == request.outcome.result_id
        return outcome_pb2.CompleteResponse(
            receipt=outcome_pb2.RECEIPT_ALREADY_RECORDED if same else outcome_pb2.RECEIPT_CONFLICT
        )

    def AbandonChat(
        self, request: chat_pb2.AbandonChatRequest, context: grpc.ServicerContext
    ) -> chat_pb2.AbandonChatResponse:
        return chat_pb2.AbandonChatResponse()  # stop your sampler here


def main(agent_server: str) -> None:
    trainer = Trainer()
    sizes = [("grpc.max_receive_message_length", 64 * MIB), ("grpc.max_send_message_length", 64 * MIB)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=[*sizes, ("grpc.so_reuseport", 0)])
    services_pb2_grpc.add_TrainerServiceServicer_to_server(trainer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    with grpc.insecure_channel(agent_server, options=sizes) as channel:
        agents = services_pb2_grpc.RolloutServiceStub(channel)
        question = message_pb2.Message(role="user", text="What is 6 * 7?")
        agents.Init(
            rollout_pb2.InitRequest(
                rollout_id=f"from-stubs-{uuid.uuid4().hex[:8]}",
                spec=rollout_pb2.RolloutSpec(messages=[question]),
                callback=rollout_pb2.Callback(target=f"127.0.0.1:{port}", protocol=1, features=["abandon_chat"]),
            )
        )
        trainer.ended.wait(60)
    server.stop(1).wait()

    (outcome,) = trainer.outcomes.values()
    print(outcome_pb2.OutcomeStatus.Name(outcome.status))
    for sample in outcome.samples:
        for segment in sample.segments:  # train on these: ids, logprobs, and the mask as run lengths
            print(sample.name, len(segment.ids), "tokens, mask runs", list(segment.mask_runs))


if __name__ == "__main__":
    main(sys.argv[1])
