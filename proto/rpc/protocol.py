"""The version of what processes say to each other.

Raise `PROTOCOL` by one with a change that a process without it would misread, or that it must not overlook:
in `proto/*.proto`, in how frames are sent and answered, or in what a lease says. A new field that a reader
may overlook needs no new version, since protobuf and JSON skip fields that they do not know.

Processes of two versions may share a deployment's Redis. They have different doors (`bus.door_of`), so no
call goes from one version to the other, none is taken over, and none is resumed there. Whatever changes, all
versions read `Entry.sender`, `Entry.epoch`, `Open.protocol` and the frames ACCEPT and STATUS alike, so that
a call at the wrong door can be refused.
"""

import grpc

from proto.rpc.call import Status

FIRST = 1
"""The version of processes that do not say theirs: they are from before there was a number."""
PROTOCOL = 3


def spoken(protocol: int) -> int:
    """The version that an OPEN names."""
    return protocol or FIRST


def refusal(theirs: int, own: int) -> Status:
    """The status of a call that came to a door of another version."""
    return Status(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"the caller speaks protocol {theirs} of the wire, and this server protocol {own}",
    )
