"""Calls between two processes over one stream; contract: proto/chatmesh/mesh/v1/link.proto.

    channel.py ─► calls ─► links ─► client ──OpenRequest──► server ─► context ─► servicer
                    │ (no link: a plain RPC)  ◄─OpenResponse──
                    └─► plain

framing  sizes, and what metadata looks like on the wire         pure
flow     one call at one end: credits, pieces, order             pure
mux      the calls of a link: batches, fairness, bad peers       pure
traffic  metrics
waiting  tasks that wait for a call, and are never cancelled by it
client   a link's client end
links    the links to the instances of a service, and the choice among them
outliers instances that fail                               pure
calls    what a caller holds: a grpc.aio.Call, with its second tries
kinds    the four kinds of them
plain    a second try without a link
server   a link's server end
context  what a servicer holds: a grpc.aio.ServicerContext
"""
