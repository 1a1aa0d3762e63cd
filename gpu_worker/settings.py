"""Settings of a worker process."""

from pathlib import Path
from typing import Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from gpu_worker.kernels.kv_sizes import AUTO, LONGEST_BLOCK, ROW_BYTES
from gpu_worker.machine.cores import granted
from ops.model_directory.lora_modules import parse
from ops.model_directory.settings import ModelSettings

BackEnd = Literal[
    "auto",
    "torch",
    "triton",
    "onednn",
    "portable",
    "neon_dot",
    "avx2",
    "avx2_vnni",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx",
]


class WorkerSettings(ModelSettings):
    """Settings of a worker. The defaults serve the shipped model on a laptop."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that the model runs on. auto: a GPU if there is one."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations. auto: the checkpoint's own type; but on a CPU float32, unless that is
    bfloat16 and C++ computes the model, so that answers that go on elsewhere are exact."""

    quantization: Literal["auto", "none", "int8", "int4", "fp8"] = "auto"
    """Type to which weights are quantized when they are loaded. auto: weights that a checkpoint has quantized
    stay so, if the back end has products of their type, and others stay plain. none: all become plain. fp8
    needs a GPU. A step reads half the bytes of bfloat16, and little more than a quarter with int4. Answers
    differ a little."""

    kv_dtype: str = Field(AUTO, pattern=f"^({'|'.join((AUTO, *ROW_BYTES))})$")
    """Type of keys and values in KV memory. auto: the type of activations. int8: with a scale for each
    position of each head. fp8, on GPUs only: with one fixed scale for each head."""

    speculation: Literal["off", "ngram", "draft", "mtp"] = "ngram"
    """The scheduler's source of drafts. With mtp the model's layer for multi-token prediction is loaded."""

    draft_model: Path | None = None
    """Directory or id of a draft model: a small model of the same vocabulary that proposes next tokens. With
    mtp: of a checkpoint with the layer, if the model's own has none."""

    lora_modules: str = ""
    """LoRA adapters that are served beside the model: `name=directory`, with spaces between. A request names
    one as its model. A directory may be an id of the Hugging Face Hub."""

    block_size: int | None = Field(None, ge=1, le=LONGEST_BLOCK)
    """Tokens per block of KV memory. Default: 16; more for a model with recurrent layers, whose states are in
    each block (`kv_sizes.usual_block_size`)."""

    max_slots: int | None = Field(None, ge=1, le=4096)
    """Sequences that the batch can hold at once. Default: `sizing.SLOTS`."""

    step_tokens: int | None = Field(None, ge=1)
    """Tokens that one step may compute at most. Default: `sizing.STEP_TOKENS`."""

    max_model_len: int = Field(0, ge=0)
    """Tokens of the longest sequence, prompt and output together. 0: the model's own limit."""

    kv_memory: ByteSize | None = Field(None, gt=0)
    """Size of KV memory, such as `512MiB`. Default: most of the free memory beside weights and activations on
    a GPU, a quarter of the free memory on a CPU."""

    memory_share: float = Field(1.0, gt=0, le=1)
    """This worker's part of the memory of its device, where several workers share that: KV memory that is not
    given as `kv_memory` is taken of this part."""

    host_memory: ByteSize | None = Field(None, ge=0)
    """Size of host memory for blocks that are swapped out of KV memory, such as `4GiB`. Default: with a GPU a
    share of the free main memory; with a CPU none, because both would be the same memory."""

    tensor_parallel: int = Field(1, ge=1, le=64)
    """Number of ranks: processes that each compute a part of the model, on a GPU or cores of their own."""

    threads: int = Field(0, ge=0, le=1024)
    """CPU threads of the model, for all ranks together. 0: see `cores.granted`."""

    kernels: BackEnd = "auto"
    """Back end. auto: Triton on a GPU; on a CPU C++ for the best instruction set of the machine; PyTorch
    where these cannot be used. Any other value forces that back end. onednn: C++ with oneDNN's products."""

    @field_validator("lora_modules")
    @classmethod
    def _are_adapters(cls, text: str) -> str:
        parse(text)
        return text

    @model_validator(mode="after")
    def _have_own_names(self) -> Self:
        if self.served_name in self.adapters:
            raise ValueError(f"QUIRE_LORA_MODULES: '{self.served_name}' is the name of the model")
        return self

    @property
    def adapters(self) -> dict[str, Path]:
        """Directories of LoRA adapters by name."""
        return parse(self.lora_modules)

    @property
    def thread_count(self) -> int:
        """Number of CPU threads: `threads`, or as many as can compute at the same time."""
        return self.threads or granted()
