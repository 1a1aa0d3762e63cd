"""Checkpoint formats: quantized weights as other tools write them."""

from collections.abc import Callable, Mapping

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.bitsandbytes import read_bitsandbytes
from gpu_worker.models.formats.compressed import read_compressed
from gpu_worker.models.formats.format import IN_MLX_FORM, KEY, Format, choice
from gpu_worker.models.formats.fp4 import Fp4Format
from gpu_worker.models.formats.gguf import read_gguf
from gpu_worker.models.formats.gptq import read_awq, read_gptq
from gpu_worker.models.formats.mixed import MixedFormat
from gpu_worker.models.formats.scaled import ScaledFormat, read_fbgemm_fp8, read_fp8
from gpu_worker.models.values import Values
from ops.model_directory import files

ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")
"""Algorithms of Model Optimizer, which differ in what they do to activations."""
MIXED = "MIXED_PRECISION"
_MLX = "quantization"
"""Key that MLX writes instead of `KEY`, or beside it."""


def read_modelopt(values: Values) -> Format | None:
    """Checkpoints of TensorRT Model Optimizer. None: weights are not quantized. Raises `ModelError`."""
    if values.get("quant_algo") is None:
        return None
    kind = choice(values, "quant_algo", (*ALGORITHMS, MIXED))
    if kind == MIXED:
        layers = values.object("quantized_layers")
        for name in layers.values:
            choice(layers.object(name), "quant_algo", ALGORITHMS, within=f"quantized_layers.{name}.")
    name = f"modelopt {kind}"
    return MixedFormat(name, (ScaledFormat(name), Fp4Format(name, 16)))


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
    """The checkpoint format that config.json or Model Optimizer's file names.

    None: weights are not quantized. Raises `ModelError` with the key at fault.
    """
    given = _given(values)
    if given is None:
        if isinstance(values.get(_MLX), dict) and values.get(_MLX):
            raise values.wrong(_MLX, IN_MLX_FORM)
        return None
    method = given.get("quant_method")
    if method is None and given.get("bits"):
        raise given.wrong(KEY, IN_MLX_FORM)
    if method is None and given.get("quant_algo"):
        method = "modelopt"
    elif method in (None, "compressed-tensors") and given.get("kv_cache_scheme"):
        if not given.get("config_groups"):
            return None  # only keys and values are quantized
        method = "compressed-tensors"
    if method not in FORMATS:
        known = ", ".join(FORMATS)
        raise given.wrong(f"{KEY}.quant_method", f"{method!r} is not supported ({known})")
    return FORMATS[method](given)


def _given(values: Values) -> Values | None:
    """What says how weights are quantized: config.json first, then Model Optimizer's file. None: neither."""
    if values.get(KEY) is not None:
        return values.object(KEY)
    path = values.path.with_name(files.MODELOPT)
    if not path.is_file():
        return None
    try:
        beside = Values(path, files.read_json(path))
    except files.FileError as error:
        raise ModelError(str(error)) from error
    return beside.object("quantization").but("quant_method", "modelopt")
