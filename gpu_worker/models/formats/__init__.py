"""Checkpoint formats: quantized weights as other tools write them. A file has those of one kind."""

from collections.abc import Callable, Mapping

from gpu_worker.models.formats.bitsandbytes import read_bitsandbytes
from gpu_worker.models.formats.compressed import read_compressed
from gpu_worker.models.formats.format import KEY, Format, choice
from gpu_worker.models.formats.fp4 import Fp4Format
from gpu_worker.models.formats.gguf import read_gguf
from gpu_worker.models.formats.gptq import read_awq, read_gptq
from gpu_worker.models.formats.scaled import ScaledFormat, read_fbgemm_fp8, read_fp8
from gpu_worker.models.values import Values


def read_modelopt(values: Values) -> Format:
    """Checkpoints of TensorRT Model Optimizer. Raises `ModelError`."""
    kind = choice(values, "quant_algo", ("FP8", "NVFP4"))
    return ScaledFormat("modelopt FP8") if kind == "FP8" else Fp4Format("modelopt NVFP4", 16)


def read_mxfp4(values: Values) -> Format:
    """Checkpoints of gpt-oss."""
    return Fp4Format("mxfp4", 32)


FORMATS: Mapping[str, Callable[[Values], Format | None]] = {
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm_fp8,
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed,
    "modelopt": read_modelopt,
    "mxfp4": read_mxfp4,
    "bitsandbytes": read_bitsandbytes,
    "gguf": read_gguf,
}
"""Readers of `quantization_config` by its `quant_method`."""


def read_format(values: Values) -> Format | None:
    """The checkpoint format that config.json names; None if weights are not quantized.

    Raises `ModelError` with the key at fault.
    """
    if values.get(KEY) is None:
        return None
    given = values.object(KEY)
    method = given.get("quant_method")
    if method in (None, "compressed-tensors") and given.get("kv_cache_scheme"):
        if not given.get("config_groups"):
            return None  # only keys and values are quantized
        method = "compressed-tensors"
    if method not in FORMATS:
        known = ", ".join(FORMATS)
        raise values.wrong(f"{KEY}.quant_method", f"{method!r} is not supported ({known})")
    return FORMATS[method](given)
