"""From the text of a PTX module to the instructions of its kernel."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class PtxError(Exception):
    """The code does what a GPU would not forgive, or what is not known here."""


@dataclass(frozen=True)
class Register:
    number: int
    bits: int
    """1: a predicate."""


@dataclass(frozen=True)
class Immediate:
    bits: int
    """Those of a float are its bits; integers may be negative."""


@dataclass(frozen=True)
class Name:
    """A label, a parameter, a special register, shared memory."""

    text: str


@dataclass(frozen=True)
class Vector:
    parts: tuple["Operand", ...]


@dataclass(frozen=True)
class Address:
    base: "Operand"
    offset: int


Operand = Register | Immediate | Name | Vector | Address


@dataclass(frozen=True)
class Guard:
    register: int
    wanted: bool


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass
class Kernel:
    name: str
    threads: int
    parameters: list[tuple[str, str]]
    """Name and type of each."""
    registers: list[int] = field(default_factory=list)
    """Bits of each."""
    blocks: list[list[Instruction]] = field(default_factory=list)
    """Only a block's last instruction leads elsewhere than to the next."""
    labels: dict[str, int] = field(default_factory=dict)
    """Blocks that they stand before."""


ENDS = ("bra", "ret", "exit", "bar")
"""Instructions after which not all threads need go on with the next."""


def parse(text: str) -> Kernel:
    """Raises `PtxError`."""
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"^\s*\.(loc|pragma)\b.*", "", text, flags=re.M)
    head = re.search(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)([^{]*)\{", text, re.S)
    if head is None:
        raise PtxError("no kernel")
    threads = re.search(r"\.reqntid\s+(\d+)", head[3])
    if threads is None:
        raise PtxError("not known how many threads a program has")
    declared = [each.split() for each in head[2].split(",") if each.strip()]
    kernel = Kernel(head[1], int(threads[1]), [(words[-1], words[1][1:]) for words in declared])
    scopes = Scopes(kernel.registers)
    kernel.blocks.append([])
    for statement in statements(text, head.end(), scopes):
        if statement.endswith(":"):
            if kernel.blocks[-1]:
                kernel.blocks.append([])
            kernel.labels[statement[:-1]] = len(kernel.blocks) - 1
        elif statement.startswith(".reg"):
            scopes.declare(statement)
        else:
            kernel.blocks[-1].append(instruction(statement, scopes))
            if kernel.blocks[-1][-1].parts[0] in ENDS:
                kernel.blocks.append([])
    return kernel


class Scopes:
    """Names of registers; those of a block in braces are its own."""

    def __init__(self, registers: list[int]) -> None:
        self._registers = registers
        self._names: list[dict[str, Register]] = [{}]
        self._families: list[dict[str, int]] = [{}]

    @property
    def depth(self) -> int:
        return len(self._names)

    def open(self) -> None:
        self._names.append({})
        self._families.append({})

    def close(self) -> None:
        self._names.pop()
        self._families.pop()

    def declare(self, statement: str) -> None:
        """`.reg .b32 %r<76>`, of which many are never used, or `.reg .b32 one, other`."""
        _, kind, names = statement.split(None, 2)
        bits = 1 if kind == ".pred" else int(kind[2:])
        for name in names.split(","):
            family = re.fullmatch(r"(\S+)<\d+>", name.strip())
            if family:
                self._families[-1][family[1]] = bits
            else:
                self._names[-1][name.strip()] = self._new(bits)

    def find(self, name: str) -> Register | None:
        family = re.fullmatch(r"(%?[A-Za-z]+)\d+", name)
        for names, families in zip(reversed(self._names), reversed(self._families), strict=True):
            if family and name not in names and family[1] in families:
                names[name] = self._new(families[family[1]])
            if name in names:
                return names[name]
        return None

    def _new(self, bits: int) -> Register:
        self._registers.append(bits)
        return Register(len(self._registers) - 1, bits)


def statements(text: str, at: int, scopes: Scopes) -> Iterator[str]:
    """Labels with their colons, and what ends with a semicolon, until the kernel's brace is closed."""
    label = re.compile(r"[$\w%]+:")
    while True:
        while text[at].isspace():
            at += 1
        if text[at] == "{":
            scopes.open()
            at += 1
        elif text[at] == "}":
            if scopes.depth == 1:
                return
            scopes.close()
            at += 1
        elif found := label.match(text, at):
            yield found[0]
            at = found.end()
        else:
            end = text.index(";", at)
            if end > at:
                yield " ".join(text[at:end].split())
            at = end + 1


def instruction(text: str, scopes: Scopes) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)(\S+) )?(\S+)(?: (.*))?", text)
    if found is None:
        raise PtxError(f"not understood: {text}")
    guard = None
    if found[2]:
        predicate = scopes.find(found[2])
        if predicate is None:
            raise PtxError(f"no such predicate: {text}")
        guard = Guard(predicate.number, not found[1])
    operands = tuple(operand(each, scopes) for each in split(found[4] or ""))
    return Instruction(found[3], operands, guard, text)


def split(text: str) -> list[str]:
    """At commas that are in no brackets."""
    return [each.strip() for each in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text) if each.strip()]


def operand(text: str, scopes: Scopes) -> Operand:
    if text[0] == "{":
        return Vector(tuple(operand(each.strip(), scopes) for each in text[1:-1].split(",")))
    if text[0] == "[":
        base, *rest = (each.strip() for each in text[1:-1].split("+"))
        return Address(operand(base, scopes), int(rest[0], 0) if rest else 0)
    if "|" in text:
        return Vector(tuple(operand(each.strip(), scopes) for each in text.split("|")))
    if re.fullmatch(r"0[fd][0-9A-Fa-f]+", text):
        return Immediate(int(text[2:], 16))
    if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
        return Immediate(int(text.rstrip("U"), 0))
    register = scopes.find(text)
    return register if register is not None else Name(text)
