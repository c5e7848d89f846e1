"""A conversation over gRPC: `python clients/python/grpc_chat.py "Hello!" "And who made you?"`.

Each argument is a turn; the second goes on where the first ended, from the stored conversation.
"""

import os
import sys
from pathlib import Path

import grpc

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2


def main() -> None:
    """Streams the answers to the arguments, one turn each."""
    roots = Path(os.environ["CHATMESH_CA_CERT"]).read_bytes()
    key = (("authorization", f"Bearer {os.environ['OPENAI_API_KEY']}"),)
    credentials = grpc.ssl_channel_credentials(roots)
    with grpc.secure_channel(os.environ["CHATMESH_EDGE"], credentials) as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        conversation_id = ""
        for question in sys.argv[1:] or ["Hello! Who are you?"]:
            message = chat_pb2.Message(role=content_pb2.ROLE_USER, content=question)
            request = chat_pb2.ChatRequest(
                messages=[message],
                conversation_id=conversation_id,
                store=True,
                max_tokens=200,
                temperature=0.3,
            )
            sys.stdout.write(f"> {question}\n")
            for event in chat.Chat(request, metadata=key, timeout=120):
                conversation_id = event.started.conversation_id or conversation_id
                sys.stdout.write(event.delta.text)
                sys.stdout.flush()
            sys.stdout.write("\n")


if __name__ == "__main__":
    main()
