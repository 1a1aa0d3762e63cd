"""Users of a deployment's Redis: one for each kind of process, which may do no more than its part.

    python3 -m ops.launcher.acl DIRECTORY

makes passwords, and writes what a Redis and the containers of a deployment need: `users.acl` for Redis, for
each kind of process `<kind>.url`, and `secret` for all processes. It needs nothing but Python. If these files
are there, it writes `users.acl` anew, with the rights of this version, the same passwords, and the users that
somebody has added.

A process reads its own inbox and writes to those of its neighbours, takes calls at its own door and puts
calls at that of the next service, keeps its own lease and sees those of all. Inboxes and leases are named
after the service, so that a pattern tells them apart; replicas of one service are not kept apart. Gateways
and schedulers write to each other's inboxes, too, for those who look inside. Nobody may load code, change
the configuration, or look at what others keep in the same Redis.
"""

import argparse
import hashlib
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

CHAIN = ("gateway", "tokenizer", "scheduler", "worker")
"""Each service calls the next one."""
DOORS = {"tokenizer": "calls:Tokenizer:*", "scheduler": "calls:Scheduler:*", "worker": "calls:Worker:*"}
INSIDE = "calls:Inside:*"
"""Door of the schedulers at which gateways look inside."""
OPERATOR = "operator"
"""The user of `quire` and of people: all keys of the deployment, and no administration of the server. It may
do what each service may, because at a Redis that is not its own `quire up` has one user for all."""
ROLES = (*CHAIN, OPERATOR)
PREFIX = "quire:"
"""Default of QUIRE_STREAM_PREFIX."""
SERVER = "redis://redis:6379/0"
"""The Redis of the compose file."""
HEALTH = "user health on nopass resetchannels -@all +ping"
"""A user without a password for health checks, who may see whether Redis answers."""

_EVERYONE = "+ping +select +info +client|id +cluster|slots +multi +exec +get +mget +smembers"
_PROCESS = (
    "+set +del +pexpire +expire +sadd +srem +xadd +xread +xrevrange +xtrim +xgroup|create +xgroup|destroy "
    "+xack +xdel"
)
_SERVER = (
    "+xreadgroup +xrange +xlen +client|unblock +eval +exists +time +xinfo|consumers +xgroup|delconsumer "
    "+xpending +xclaim"
)
"""What it takes to read a door. Scripts run with these rights and no others."""
_GATEWAY = (
    "+hget +hgetall +hkeys +hlen +hset +hsetnx +hexists +hdel +hincrby +zadd +zrem +zrange +zscore +zcard "
    "+scard +rpush +lrange +getbit +setbit +xrange +pttl +time +exists +eval"
)
"""What it takes to read the API keys, to count requests and tokens, to store responses, files and the
answers under an Idempotency-Key, and to work at jobs. Metrics take what all may do."""
_OPERATOR = "+@all -@admin -@dangerous -@scripting -@pubsub +info +eval +client|unblock"


def rules(role: str, prefix: str) -> tuple[str, ...]:
    """What the user `role` may do, as `ACL SETUSER` takes it, password aside."""
    prefix = _literal(prefix)
    if role == OPERATOR:
        return (*_OPERATOR.split(), f"~{prefix}*", "resetchannels")
    place = CHAIN.index(role)
    neighbours = [CHAIN[one] for one in (place - 1, place + 1) if 0 <= one < len(CHAIN)]
    keys = [
        *("~processes", f"~alive:{role}-*", f"~sent:{role}-*", f"~inbox:{role}-*"),
        f"%W~metrics:{role}-*",
        *("%R~alive:*", "%W~dead-letters"),
        *(f"%W~inbox:{neighbour}-*" for neighbour in neighbours),
    ]
    commands = f"-@all {_EVERYONE} {_PROCESS}"
    calls: tuple[str, ...] = ()
    """Rights apart from the others: to look whether a call is still at the next service's door."""
    if role == "gateway":
        keys += ["%R~keys*", "~limits*", "~responses:*", "~claims:*", "~jobs:*", "~files:*", "~batches:*"]
        keys += ["%R~metrics:*", "%W~images:*"]
        keys += [f"%W~{INSIDE}", "%W~inbox:scheduler-*"]
        commands += f" {_GATEWAY}"
    if role in ("tokenizer", "worker"):
        keys.append("%R~images:*")
    if role == "tokenizer":
        keys.append("~grammars:*")
    if role == "scheduler":
        keys += [f"~{INSIDE}", "%W~inbox:gateway-*"]
    if role in DOORS:
        keys.append(f"~{DOORS[role]}")
        commands += f" {_SERVER}"
    if place + 1 < len(CHAIN):
        door = DOORS[CHAIN[place + 1]]
        keys.append(f"%W~{door}")
        calls = (f"(%R~{prefix}{door} +xrange)",)
    if role == "gateway":
        calls += (f"(%R~{prefix}{INSIDE} +xrange)",)
    return (*commands.split(), *(one.replace("~", f"~{prefix}", 1) for one in keys), "resetchannels", *calls)


def _literal(prefix: str) -> str:
    """A prefix as part of a pattern that stands for itself. Raises `ValueError` if there is none."""
    if re.search(r"\s", prefix):
        raise ValueError(f"a prefix with white space cannot be told apart by users' rights: {prefix!r}")
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)


@dataclass(frozen=True)
class Credentials:
    """A password for each role."""

    passwords: Mapping[str, str] = field(
        default_factory=lambda: {role: secrets.token_hex(32) for role in ROLES}, repr=False
    )

    @classmethod
    def of(cls, directory: Path) -> "Credentials":
        """Those that `write` left in a directory. Raises `OSError`, `ValueError`."""
        passwords = {}
        for role in ROLES:
            password = urlsplit((directory / f"{role}.url").read_text().strip()).password
            if not password:
                raise ValueError(f"{directory / role}.url has no password")
            passwords[role] = unquote(password)
        return cls(passwords)

    def acl_file(self, prefix: str) -> str:
        """The users, as a server reads them. It holds digests of the passwords."""
        lines = [
            f"user {role} on #{digest(password)} {' '.join(rules(role, prefix))}"
            for role, password in self.passwords.items()
        ]
        return "\n".join(["user default off", HEALTH, *lines, ""])

    def url(self, role: str, server: str) -> str:
        """The URL at which a role finds the server whose URL without user is `server`."""
        scheme, _, rest = server.partition("://")
        return f"{scheme}://{quote(role)}:{self.passwords[role]}@{rest}"


def prefix_in(acl_file: str) -> str:
    """The prefix that was given to `Credentials.acl_file`."""
    found = re.search(r" ~(\S*)processes ", acl_file)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else PREFIX


def digest(password: str) -> str:
    """A password as it stands in a file of users. Random and long, it needs no slow hash."""
    return hashlib.sha256(password.encode()).hexdigest()


def write(directory: Path, credentials: Credentials, server: str, prefix: str) -> None:
    """Write the files into a new directory that only this user may enter.

    They themselves may be read by all: an engine mounts them into containers, whose user is another one.
    Raises `OSError`, and `FileExistsError` if there is such a directory.
    """
    directory.mkdir(parents=True, mode=0o700)
    texts = {f"{role}.url": credentials.url(role, server) for role in ROLES}
    texts |= {"users.acl": credentials.acl_file(prefix), "secret": secrets.token_hex(32)}
    for name, text in texts.items():
        _replace(directory / name, text)


def rewrite(directory: Path, prefix: str | None) -> None:
    """Write the users of a directory of `write`'s anew, with the rights that this version gives them.

    `prefix`: None: the one from before. Raises `OSError`, `ValueError`.
    """
    users = directory / "users.acl"
    before = users.read_text()
    text = Credentials.of(directory).acl_file(prefix_in(before) if prefix is None else prefix)
    ours = [line.split()[:2] for line in text.splitlines()]
    added = [f"{line}\n" for line in before.splitlines() if line.strip() and line.split()[:2] not in ours]
    _replace(users, "".join([text, *added]))


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(0o444)
    new.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make passwords for a deployment's users of Redis, and write them to files."
    )
    parser.add_argument(
        "directory",
        type=Path,
        help="where they go; passwords that are there stay, and users.acl is made anew",
    )
    parser.add_argument(
        "--redis", metavar="URL", help=f"without user, for a new directory (default: {SERVER})"
    )
    parser.add_argument(
        "--prefix", help=f"QUIRE_STREAM_PREFIX (default: that of the users that are there, or {PREFIX})"
    )
    options = parser.parse_args()
    try:
        server = SERVER if options.redis is None else options.redis
        if urlsplit(server).scheme not in ("redis", "rediss", "unix") or "@" in server:
            raise ValueError(f"--redis: a URL without user and password, as in {SERVER}")
        if options.directory.exists():
            if options.redis is not None:
                raise ValueError(f"--redis: {options.directory} is there, and its URLs stay as they are")
            rewrite(options.directory, options.prefix)
            print(
                f"{options.directory / 'users.acl'} has this version's rights, and the passwords from before"
            )
            return 0
        write(
            options.directory,
            Credentials(),
            server,
            PREFIX if options.prefix is None else options.prefix,
        )
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"passwords and users are in {options.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
