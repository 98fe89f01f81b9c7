"""The methods of the two services by name, and their messages as JSON."""

from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service."""

    name: str
    service: str
    path: str
    """The path of its calls."""
    request: type[Message]
    response: type[Message]
    streams_requests: bool
    streams_responses: bool

    def __str__(self) -> str:
        streams = ["stream " if each else "" for each in (self.streams_requests, self.streams_responses)]
        names = [each.DESCRIPTOR.name for each in (self.request, self.response)]
        return f"{self.name}({streams[0]}{names[0]}) returns ({streams[1]}{names[1]})"

    def read(self, text: str) -> Message:
        """Return the request that a JSON object describes. Raises InvalidArgument."""
        if not text.lstrip().startswith("{"):
            raise InvalidArgument("", "it is not a JSON object")
        try:
            return json_format.Parse(text, self.request())
        except (json_format.ParseError, RecursionError) as error:
            raise InvalidArgument("", str(error)) from None


def as_json(message: Message) -> dict[str, Any]:
    """Return a message as an object of JSON, with protobuf's names of fields in lowerCamelCase."""
    return json_format.MessageToDict(message)


METHODS: dict[str, Method] = {
    method.name: Method(
        method.name,
        service.name,
        f"/{service.full_name}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for service in services_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
