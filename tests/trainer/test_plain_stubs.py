"""A trainer written against the plain stubs alone, synchronous, driven with grpcio-testing.

grpcio-testing does not await async servicers (it would answer OK with a coroutine), so it is
used for what is synchronous, and only for that.
"""

import grpc
import grpc_testing

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    chat_pb2,
    message_pb2,
    outcome_pb2,
    services_pb2,
    services_pb2_grpc,
)


class PlainTrainer(services_pb2_grpc.TrainerServiceServicer):
    """Echoes, and records each result once."""

    def __init__(self):
        self.results = {}

    def Chat(self, request, context):
        if not request.full.messages:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "full.messages: is empty")
        text = request.full.messages[-1].text
        return chat_pb2.ChatResponse(message=message_pb2.Message(role="assistant", text=text))

    def Complete(self, request, context):
        key = (request.outcome.rollout_id, request.outcome.attempt)
        first = self.results.setdefault(key, request.outcome.result_id)
        receipts = outcome_pb2.Receipt
        if first != request.outcome.result_id:
            return outcome_pb2.CompleteResponse(receipt=receipts.RECEIPT_CONFLICT)
        return outcome_pb2.CompleteResponse(receipt=receipts.RECEIPT_RECORDED)


def invoke(name, request):
    service = services_pb2.DESCRIPTOR.services_by_name["TrainerService"]
    server = grpc_testing.server_from_dictionary({service: PlainTrainer()}, grpc_testing.strict_real_time())
    call = server.invoke_unary_unary(service.methods_by_name[name], (), request, 5)
    response, _, code, _ = call.termination()
    return response, code


def test_chat_and_complete():
    request = chat_pb2.ChatRequest(rollout_id="r", sample="main", chat_number=1)
    assert invoke("Chat", request)[1] is grpc.StatusCode.INVALID_ARGUMENT
    request.full.messages.add(role="user", text="hello")
    response, code = invoke("Chat", request)
    assert code is grpc.StatusCode.OK
    assert response.message.text == "hello"
    report = outcome_pb2.CompleteRequest()
    report.outcome.rollout_id = "r"
    response, code = invoke("Complete", report)
    assert code is grpc.StatusCode.OK
    assert response.receipt == outcome_pb2.RECEIPT_RECORDED
