"""gRPC over Redis Streams: a channel and a server for generated stubs and servicers. See README.md."""

from proto.rpc.bus import Bus
from proto.rpc.errors import BusAway, MalformedEntry, TaskEnded, TransportError
from proto.rpc.lease import Lease
from proto.rpc.memory_bus import MemoryBus
from proto.rpc.node import Node
from proto.rpc.owner import Owner
from proto.rpc.redis_bus import RedisBus
from proto.rpc.resume import Resumption, from_outside
from proto.rpc.server import Server

__all__ = [
    "Bus",
    "BusAway",
    "Lease",
    "MalformedEntry",
    "MemoryBus",
    "Node",
    "Owner",
    "RedisBus",
    "Resumption",
    "Server",
    "TaskEnded",
    "TransportError",
    "from_outside",
]
