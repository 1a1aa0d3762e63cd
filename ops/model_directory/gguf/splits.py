"""How text is split before byte-level BPE. A GGUF file has the name alone (`tokenizer.ggml.pre`)."""

from collections.abc import Mapping

from ops.model_directory.tokenizer_json import Split

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r" ?[^\s\p{L}", r" ?[^\s\p{L}\p{M}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_WORDS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_WORDS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_DIGIT = r"\p{N}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _REST,
)

_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376-\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183-\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2-\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have cases, as DeepSeek V2's tokenizer lists them."""
_IDEOGRAPHS = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK = (
    "[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _IDEOGRAPHS,
    r"\p{N}+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, _DIGIT)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SEED_CODER = _LLAMA3.replace("{1,3}", "{1}").replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = (
    r"\p{Han}+|"
    rf"{_BEFORE}{_UPPER[:-1]}{_NOT_HAN}*{_LOWER[:-1]}{_NOT_HAN}+{_WORDS}?"
    rf"|{_BEFORE}{_UPPER[:-1]}{_NOT_HAN}+{_LOWER[:-1]}{_NOT_HAN}*{_WORDS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
)

SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(("gpt-2", "default", "phi-2", "mpt", "olmo", "roberta-bpe", "jais"), ((), True)),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "trillion", "granite-docling"), ((), True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), ((_DIGIT,), True)),
    "minerva-7b": ((_DIGIT,), True),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx"), ((_LLAMA3,), False)),
    **dict.fromkeys(("falcon-h1", "midm-2.0", "lfm2"), ((_LLAMA3,), False)),
    **dict.fromkeys(("smaug-bpe", "chatglm-bpe", "glm4"), ((_LLAMA3,), False)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), ((_QWEN2,), False)),
    "qwen35": ((_QWEN35,), False),
    "tekken": ((_TEKKEN,), False),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), ((_GPT4O,), False)),
    "deepseek-v3": (_DEEPSEEK3, False),
    "deepseek-llm": (_DEEPSEEK, False),
    "deepseek-coder": (_DEEPSEEK_CODER, False),
    "kimi-k2": ((_KIMI,), False),
    "falcon": (_FALCON, False),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), ((_BLOOM,), False)),
    "viking": ((_BLOOM, _DIGIT), False),
    "seed-coder": ((_SEED_CODER,), False),
}
"""How text is split, by `tokenizer.ggml.pre`."""

WHOLE_MERGES = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "midm-2.0", "lfm2"),
    *("pixtral", "tekken"),
)
"""A part that is a token is that token, whatever merges say."""
BEGINS = WHOLE_MERGES
"""Texts begin with the bos token if the file does not say."""
COMPOSED = ("qwen2", "qwen35", "deepseek-r1-qwen", "megrez")
"""Text is normalized to NFC."""
