"""How the wire compares with plain gRPC: latency of a unary call, and CPU per streamed message.

    python -m ops.bench.wire [--out FILE] [--rounds N] [--seed N]

Client and server are processes of their own, on loopback, for each of the two transports; Redis is one
more. Rounds alternate between the transports, so that what else the machine does hits both. CPU time is
that of client, server and Redis together.

    unary   one call at a time, 64 bytes each way; p50 and p99 in milliseconds
    steps   256 calls stream at once; every 20 ms each is given one message, as by a model's steps
    flood   256 calls stream at once, each as fast as it can
"""

import random
from collections.abc import Callable
from statistics import median
from typing import Any

from ops.bench.command import parser
from ops.bench.load.processes import cpu_seconds
from ops.bench.record import percentile, write
from ops.bench.rig.peer import Peer
from ops.bench.rig.wire_peer import ADDRESS, Answer, Question
from ops.launcher.redis_server import RedisServer

TRANSPORTS = ("redis", "grpc")
UNARY_CALLS = 1000
STREAMS = 256
STEPS = 100
FLOOD = 200
"""Messages per call."""
ROUNDS = 5


class Transport:
    """The processes of one transport."""

    def __init__(self, name: str, redis: RedisServer) -> None:
        assert redis.process is not None
        self.server = _peer("server", name, redis.url)
        self.client = _peer("client", name, redis.url if name == "redis" else self.server.ready)
        self._pids = {"server": self.server.process.pid, "client": self.client.process.pid}
        if name == "redis":
            self._pids["redis"] = redis.process.pid

    def unary(self, payload: bytes) -> dict[str, float]:
        """Latency, and CPU time of a call."""
        answer, cpu = self._measure(Question("unary", 1, UNARY_CALLS, payload))
        p50, p99 = percentile(answer.latencies, 0.5), percentile(answer.latencies, 0.99)
        return {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "cpu_us_per_call": cpu / UNARY_CALLS * 1e6}

    def stream(self, kind: str, messages: int, payload: bytes) -> dict[str, float]:
        """What streamed messages cost, and how fast they came."""
        answer, cpu = self._measure(Question(kind, STREAMS, messages, payload))
        return {
            "cpu_us_per_message": cpu / answer.messages * 1e6,
            "messages_per_cpu_second": answer.messages / cpu,
            "messages_per_second": answer.messages / answer.seconds,
        }

    def _measure(self, question: Question) -> tuple[Answer, float]:
        before = sum(cpu_seconds(self._pids).values())
        answer = Answer.decode(self.client.ask(question.encode()))
        return answer, sum(cpu_seconds(self._pids).values()) - before

    def stop(self) -> None:
        self.client.stop()
        self.server.stop()


def _peer(role: str, transport: str, address: str) -> Peer:
    return Peer("ops.bench.rig.wire_peer", role, transport, **{ADDRESS: address})


def measure(rounds: int, seed: int) -> dict[str, Any]:
    """All rounds of all measurements: what each transport had, and their ratios round by round."""
    payload = random.Random(seed).randbytes(64)
    measurements: dict[str, Callable[[Transport], dict[str, float]]] = {
        "unary": lambda transport: transport.unary(payload),
        "steps": lambda transport: transport.stream("steps", STEPS, payload),
        "flood": lambda transport: transport.stream("flood", FLOOD, payload),
    }
    results: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {transport: [] for transport in TRANSPORTS} for name in measurements
    }
    with RedisServer() as redis:
        transports = {name: Transport(name, redis) for name in TRANSPORTS}
        try:
            for index in range(rounds + 1):  # the first one warms up
                for name, run in measurements.items():
                    for transport in TRANSPORTS if index % 2 else reversed(TRANSPORTS):
                        result = run(transports[transport])
                        if index:
                            results[name][transport].append(result)
        finally:
            for peers in transports.values():
                peers.stop()
    return {"rounds": results, "ratios": ratios(results)}


def ratios(results: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, float]]:
    """Redis over gRPC: median, lowest and highest of the rounds' ratios."""

    def spread(name: str, figure: str) -> dict[str, float]:
        pairs = zip(results[name]["redis"], results[name]["grpc"], strict=True)
        values = [ours[figure] / plain[figure] for ours, plain in pairs]
        return {"median": median(values), "lowest": min(values), "highest": max(values)}

    return {
        "unary_p50": spread("unary", "p50_ms"),
        "steps_messages_per_cpu_second": spread("steps", "messages_per_cpu_second"),
        "flood_messages_per_cpu_second": spread("flood", "messages_per_cpu_second"),
    }


def table(results: dict[str, Any]) -> str:
    """The results for a person."""
    lines = [f"{'':34}{'redis':>12}{'grpc.aio':>12}"]
    for name, by_transport in results["rounds"].items():
        for figure in by_transport["redis"][0]:
            values = [median(one[figure] for one in by_transport[transport]) for transport in TRANSPORTS]
            lines.append(f"{name + ' ' + figure:34}" + "".join(f"{value:12.3f}" for value in values))
    lines.append("")
    for name, ratio in results["ratios"].items():
        spread = f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}"
        lines.append(f"{name + ', redis / grpc.aio':54}{ratio['median']:6.2f}  ({spread})")
    return "\n".join(lines)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--rounds", type=int, default=ROUNDS)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results = measure(options.rounds, options.seed)
    print(table(results))
    if options.out is not None:
        write(options.out, "wire", options.seed, results)


if __name__ == "__main__":
    main()
