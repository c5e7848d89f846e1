"""What every service needs of the mesh, and nothing that only one needs.

errors      the one error type, and its form on the wire
enums       the words of a contract's enum
settings    what the supervisor tells a process
identity    key, certificate, renewal
bootstrap   the xDS client's configuration
lease       registration, policies
deadlines   how long an outgoing call may take
channel     `channel_to(service)`
server      who may call, how failures are told
telemetry   logs, metrics, traces
node        `run(start)`: all of it in order
"""

from mesh.chassis.errors import MeshError
from mesh.chassis.node import Node, run

__all__ = ["MeshError", "Node", "run"]
