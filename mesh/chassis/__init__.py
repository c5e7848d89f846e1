"""What every service needs of the mesh, and nothing that only one needs.

errors      the one error type, and its form on the wire
enums       the words of a contract's enum
settings    what the supervisor tells a process
background  work that goes on as long as the process
identity    key, certificate, renewal
bootstrap   the xDS client's configuration
lease       registration, policies
deadlines   how long an outgoing call may take
channel     `channel_to(service)`
link/       calls that share one stream, between channel and server
server      who may call, how failures are reported
telemetry   logs, metrics, traces
node        `run(start)`: all of it in order

What two services or more would write alike:

checked_yaml   YAML whose mistakes are told with line, key and remedy
followed_file  a file that is read again when it changes
group_commit   what many callers write at once goes to the store together
files          files that are replaced whole
pages          page sizes and tokens of lists
postgres       the pool, and which failures mean that the store is away
redis_client   a client without the timeouts that lose cancellations
model_source   MODEL: its folder and the id it answers by
"""

from mesh.chassis.errors import MeshError
from mesh.chassis.node import Node, run

__all__ = ["MeshError", "Node", "run"]
