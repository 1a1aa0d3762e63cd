"""A connection to Redis for commands, as the bus and whatever else is kept there use it."""

import asyncio

from proto.rpc.errors import BusAway
from proto.rpc.place import Place
from proto.rpc.resp import Command, Connection, RedisReplyError, Replies, checked

REPLY_SECONDS = 5
"""A connection whose reply takes longer, beyond the time that a read may block, counts as dead."""


class Line:
    """A connection that is opened when it is needed, and again after it was lost."""

    def __init__(self, url: str, place: Place | None = None) -> None:
        self._place = place or Place(url)
        self._opening = asyncio.Lock()
        self.connection: Connection | None = None
        self.history = b""
        """History of Redis in which the lease was taken; empty before that."""

    def another(self) -> "Line":
        """Another connection to the same Redis, for reads that block."""
        return Line(self._place.url, self._place)

    def here(self) -> Connection | None:
        """The connection, if it can be used at once, as it nearly always can. None: `get` it."""
        connection = self._open()
        return connection if connection is not None and connection.history == self.history else None

    async def get(self, any_history: bool = False) -> Connection:
        """Raises `BusAway`, too, for a history that is not the lease's, unless it may be `any_history`."""
        connection = self._open()
        if connection is None:
            async with self._opening:  # one connection for all that want it now
                connection = self._open()
                if connection is None:
                    connection = self.connection = await self._connect()
        if connection.history != self.history and self.history and not any_history:
            raise BusAway("Redis has restarted, or another server has taken its place")
        return connection

    async def _connect(self) -> Connection:
        url = await self._place.find()
        try:
            connection = await Connection.open(url)
            if connection.cluster:
                await self._learn(connection)
        except BusAway:
            self._place.lost(url)
            raise
        return connection

    async def _learn(self, connection: Connection) -> None:
        """Ask where the other servers of the cluster are."""
        try:
            (slots,) = await connection.send([("CLUSTER", "SLOTS")], REPLY_SECONDS)
        except BaseException:
            connection.close()
            raise
        self._place.learn(slots)

    def _open(self) -> Connection | None:
        connection = self.connection
        return connection if connection is not None and connection.open_still else None

    async def execute(self, *commands: Command, block_seconds: float = 0) -> Replies:
        """Raises `BusAway`."""
        connection = self.here() or await self.get()
        try:
            return checked(await connection.send(commands, block_seconds + REPLY_SECONDS))
        except RedisReplyError as error:
            if not self.refused(error):
                raise
        connection = await self.get()
        return await connection.execute(commands, block_seconds + REPLY_SECONDS)

    async def evicts(self) -> str:
        """The policy by which this Redis drops keys when it is full: leases and streams are among them. Empty
        if it drops none. Raises `BusAway`."""
        facts = await self._memory()
        policy: str = facts.get(b"maxmemory_policy", b"noeviction").decode()
        return "" if policy == "noeviction" or facts.get(b"maxmemory") == b"0" else policy

    async def room(self) -> int:
        """`maxmemory` in bytes; 0 without one. Raises `BusAway`."""
        return int((await self._memory()).get(b"maxmemory", 0))

    async def fullness(self) -> float:
        """Part of `maxmemory` that is used; 0 without one. Raises `BusAway`."""
        facts = await self._memory()
        most = int(facts.get(b"maxmemory", 0))
        return int(facts.get(b"used_memory", 0)) / most if most else 0.0

    async def _memory(self) -> dict[bytes, bytes]:
        (info,) = await self.execute(("INFO", "memory"))
        return dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)

    def refused(self, error: RedisReplyError) -> bool:
        """Look at an error reply. True if it names the server of a cluster that has the keys.

        A server that has become a replica is left: whoever took its place is found by connecting again.
        """
        moved = self._place.moved(str(error))
        if moved or "READONLY" in str(error):
            self.close()
        return moved

    @property
    def strayed(self) -> bool:
        """Whether it leads to another history than the lease's."""
        connection = self._open()
        return connection is not None and connection.history != self.history

    def belongs_to(self, history: bytes) -> None:
        """The lease is taken in this history. A connection to another one is closed."""
        self.history = history
        if self.connection is not None and self.connection.history != history:
            self.close()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
