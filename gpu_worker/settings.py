"""Settings of a worker process."""

import os
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field

from gpu_worker.kernels.kv_sizes import AUTO, ROW_BYTES
from ops.runtime.settings import ModelSettings

BackEnd = Literal["auto", "torch", "triton", "onednn", "portable", "avx2", "avx512", "avx512_bf16"]


class WorkerSettings(ModelSettings):
    """What a worker must know. The defaults serve the shipped model on a laptop."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. auto: a GPU if there is one."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations. auto: float32 on a CPU, so that resumed answers are
    exact; the checkpoint's own on a GPU."""

    quantization: Literal["none", "int8", "int4", "fp8"] = "none"
    """What the weights become when they are loaded: int8, int4, or on GPUs fp8. A step reads half the bytes
    of bfloat16, with int4 little more than a quarter, and answers differ a little."""

    kv_dtype: str = Field(AUTO, pattern=f"^({'|'.join((AUTO, *ROW_BYTES))})$")
    """Type of KV memory. auto: as activations. int8: each position of a head with a scale of its own. fp8, on
    GPUs: each head with one for all time."""

    draft_model: Path | None = None
    """Directory or id of a small model of the same vocabulary, which guesses what the model will say next."""

    block_size: int = Field(16, ge=1, le=1024)
    """Tokens per block of KV memory."""

    max_slots: int | None = Field(None, ge=1, le=4096)
    """Sequences that the batch holds at once. Default: see `sizing.SLOTS`."""

    step_tokens: int | None = Field(None, ge=1)
    """Tokens that one step may compute at most. Default: see `sizing.STEP_TOKENS`."""

    max_model_len: int = Field(0, ge=0)
    """Longest sequence, prompt and output together. 0: the model's own limit."""

    kv_memory: ByteSize | None = Field(None, gt=0)
    """KV memory, such as `512MiB`. Default: what is left beside weights and activations."""

    host_memory: ByteSize | None = Field(None, ge=0)
    """Memory of the host for blocks that KV memory has no room for, such as `4GiB`. Default: a share of
    what is free if KV memory is a GPU's; none on a CPU, where both would be the same memory."""

    tensor_parallel: int = Field(1, ge=1, le=64)
    """Ranks: processes that each hold and compute a part of the model, on GPUs or cores of their own."""

    threads: int = Field(0, ge=0, le=1024)
    """CPU threads of the model, of all ranks together. 0: all cores that the process may use."""

    kernels: BackEnd = "auto"
    """What computes. auto: Triton on a GPU; on a CPU C++ for the best instruction set that the machine
    has, with oneDNN for the products in bfloat16 if it has matrix units. PyTorch where these cannot be had. A
    name forces one."""

    @property
    def thread_count(self) -> int:
        """CPU threads, counted out."""
        return self.threads or len(os.sched_getaffinity(0))
