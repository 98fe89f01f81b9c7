"""Remembers the prompts with media that were sent, without the tokens of the media.

A model server replaces the place of an image by many tokens, and returns the whole prompt. The tokens of a chat then
have the image, and the next prompt must not: the server would look for the image's place in vain.
"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from osmosis_grpc.protocol.types import ChatRequest, Ids

MOST = 1024
"""The most chats that are remembered. The one that was not used for the longest time is forgotten first."""


class SentPrompts:
    """The prompt and the reply of each chat with media, as a next chat has to send them."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int, str, int], Ids] = OrderedDict()

    def add(self, request: ChatRequest, prompt_ids: Ids, reply_ids: Ids) -> None:
        """Remember the prompt that was sent for a chat, and the tokens of its reply."""
        self._sent[request.rollout_id, request.attempt, request.sample, request.chat_number] = np.concatenate(
            [prompt_ids, reply_ids]
        )
        if len(self._sent) > MOST:
            self._sent.popitem(last=False)

    def without_media(self, request: ChatRequest) -> ChatRequest:
        """Return a chat with media whose `known_ids` have no tokens of media.

        They are None if the chat that it continues is not remembered, so that the prompt is rendered anew.
        """
        key = request.rollout_id, request.attempt, request.sample, request.parent_chat
        if key in self._sent:
            self._sent.move_to_end(key)
        return replace(request, known_ids=self._sent.get(key))
