"""Names for the contents of full blocks: a hash chained over everything before them.

    name[i] = H(name[i - 1] + tokens of block i),   name[-1] = H(salt)

Equal names mean equal tokens at equal positions under the same salt. H resists collisions, so that nobody can
craft a prompt that reads the cache of another.
"""

from array import array
from hashlib import blake2b

DIGEST_BYTES = 32


def root(salt: str) -> bytes:
    """The name before the first block of every chain with this salt."""
    return blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=b"quire salt").digest()


def extend_chain(
    chain: list[bytes], start: bytes, tokens: "array[int]", blocks: int, block_size: int
) -> None:
    """Append names until the chain has those of the first `blocks` full blocks of `tokens`.

    `start`: the salt's root. Does nothing if the chain is that long already.
    """
    done = len(chain)
    if done >= blocks:
        return
    content = memoryview(tokens[done * block_size : blocks * block_size].tobytes())
    width = block_size * tokens.itemsize
    name = chain[-1] if chain else start
    for offset in range(0, len(content), width):
        digest = blake2b(name, digest_size=DIGEST_BYTES)
        digest.update(content[offset : offset + width])
        name = digest.digest()
        chain.append(name)
