"""The faces of a turn: they parse, follow and write, and decide nothing.

openai    HTTP: chat completions and listings as OpenAI shapes them
typed     gRPC: chatmesh.chat.v1
identity  who is calling
changes   what may be changed of a conversation
"""
