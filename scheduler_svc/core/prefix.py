"""Names for the contents of blocks: a hash chained over everything before them.

    name[i] = H(name[i - 1] + tokens of block i),   name[-1] = H(salt, adapter)

If images are seen in a block, its name is the hash of that and of these images: whose files, in how many rows
and columns, at which positions. Their tokens alone are alike for all images.

A block that is filled in part has a name of the tokens that it has (`capabilities/partial_blocks.py`).

Equal names mean equal tokens and images at equal positions under the same salt, computed with the same LoRA
adapter. H
resists collisions, so that nobody can craft a prompt that reads the cache of another.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from scheduler_svc.core.images import Image, images_between

DIGEST_BYTES = 32


def root(salt: str, adapter: str = "") -> bytes:
    """The name before the first block of every chain with this salt and this LoRA adapter.

    The name of the adapter stands for its weights: a worker has one adapter of that name as long as it lives,
    and workers do not share blocks.
    """
    own = blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=b"quire salt").digest()
    if not adapter:
        return own
    return blake2b(own + adapter.encode(), digest_size=DIGEST_BYTES, person=b"quire adapter").digest()


def extend_chain(
    chain: list[bytes],
    start: bytes,
    tokens: "array[int]",
    blocks: int,
    block_size: int,
    images: Sequence[Image] = (),
) -> None:
    """Append names until the chain has those of the first `blocks` full blocks of `tokens`.

    `start`: see `root`. `images`: among the tokens. Does nothing if the chain is that long already.
    """
    done = len(chain)
    if images:  # apart from all others, which pay nothing for it
        for number in range(done, blocks):
            extend_chain(chain, start, tokens, number + 1, block_size)
            chain[-1] = _with_images(chain[-1], images, number * block_size, (number + 1) * block_size)
        return
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


def partial_names(
    chain: list[bytes],
    start: bytes,
    tokens: "array[int]",
    ends: Sequence[int],
    block_size: int,
    images: Sequence[Image] = (),
) -> list[bytes]:
    """Names of the block that the first `end` tokens fill in part, for each of `ends`, the shortest first.

    All of `ends`, one at least, are in the same block. The chain gets the names before it.
    """
    full = ends[0] // block_size
    extend_chain(chain, start, tokens, full, block_size, images)
    digest = blake2b(chain[full - 1] if full else start, digest_size=DIGEST_BYTES)
    names, done = list[bytes](), full * block_size
    for end in ends:
        digest.update(tokens[done:end].tobytes())
        name = digest.digest()
        names.append(_with_images(name, images, full * block_size, end) if images else name)
        done = end
    return names


def _with_images(name: bytes, images: Sequence[Image], start: int, end: int) -> bytes:
    """Name of a block with the tokens from `start` to `end` - 1. `name`: what it has without images."""
    seen = b"".join(image.content for image in images_between(images, start, end))
    return blake2b(name + seen, digest_size=DIGEST_BYTES, person=b"quire images").digest() if seen else name
