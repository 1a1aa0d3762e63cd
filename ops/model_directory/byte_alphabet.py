"""GPT-2's alphabet, in which tokenizer.json writes the bytes of byte-level BPE's tokens."""


def _characters() -> dict[int, str]:
    """Bytes that are printable Latin-1 characters are these, others are 256 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


CHARACTERS = _characters()
"""The character of each byte."""
BYTES = {character: byte for byte, character in CHARACTERS.items()}
"""The byte of each character."""
