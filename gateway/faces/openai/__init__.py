"""The HTTP face of a turn: JSON and server-sent events, as OpenAI documents them.

requests   body to Ask
chunks     events to the bytes of an answer
stream     the writing of an answer to one client
errors     the one table from reasons to HTTP
service    the methods
"""
