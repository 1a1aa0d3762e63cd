"""Loading a model takes little more than what is kept, whatever the format of its weights.

A process of its own loads a model of several layers, all with the same weights. Before that it loads one of
two layers: libraries and kernels are not counted. That files are mapped counts: a file whose pages are not
given back would be the model a second time.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ops.model_directory.gguf.directory import as_directory
from ops.model_directory.gguf.file import read_gguf
from tests.support import checkpoints
from tests.support.checkpoints import Encoder
from tests.support.gguf import KINDS, model_file, tokens, write_gguf
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import GPTQ, compressed
from tests.unit.gpu_worker.behaviour.test_families import random_model

LAYERS = 16
MOST = 1.1
"""Of what is kept."""
ONE = 14 << 20
"""Bytes beside it that do not grow with the model: a matrix in all its forms, while it is laid out."""
SIZES: dict[str, Any] = {
    **{"hidden_size": 1024, "intermediate_size": 1024, "head_dim": 64, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.05},
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
GROUPS = {"group_size": 32}
FORMATS: dict[str, tuple[Encoder, dict[str, Any]]] = {
    "fp8": (checkpoints.fp8(128, 128, "weight_scale_inv"), BLOCKS),
    "gptq": (checkpoints.gptq(4, 32), GPTQ | GROUPS),
    "int8": (checkpoints.int8(), compressed("int-quantized", strategy="channel")),
    "bitsandbytes": (checkpoints.bitsandbytes(64), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}
CASES = {
    **dict.fromkeys(("shards", "fp8", "gptq", "int8", "bitsandbytes", "gguf"), "Qwen3ForCausalLM"),
    "transformers, gptq": "NemotronForCausalLM",
    "encoder": "BertModel",
}
"""Architectures by case."""
_CHILD = """
import ctypes, gc, json, sys
from pathlib import Path
import torch
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import KeptKernels
from gpu_worker.models.load import load_model

torch.set_num_threads(1)
kernels = KeptKernels(library.load(build.supported()[0], 1))

def memory(name):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) << 10

def load(directory):
    return load_model(Path(directory), torch.device("cpu"), kernels, torch.bfloat16)

for folder in sys.argv[1:]:
    load(folder + "/few")
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    model = load(folder + "/many")
    peak = memory("VmHWM")
    kept = memory("VmRSS")
    del model
    print(json.dumps({"peak": peak - before, "kept": kept - before}))
"""


def repeated(name: str) -> str:
    """The name of a layer's tensor, without its number."""
    return re.sub(r"(layers?|blk)\.0\.", r"\1.{}.", name)


def write(folder: Path, name: str) -> None:
    """The directories `few` and `many`: a model of two layers, and one of many, in shards."""
    model = random_model(CASES[name], SIZES)
    if name != "encoder":  # its type changes while it is loaded
        model.bfloat16()
    model.save_pretrained(folder / "source")
    form = name.rpartition(", ")[2]
    if form == "gguf":
        values = {"attention.key_length": 64, "attention.value_length": 64} | tokens(97)
        file, _ = model_file(folder / "source", folder, "qwen3", values, lambda own: "Q4_K")
        model, content = read_gguf(file), file.read_bytes()
        for what, count in (("few", 2), ("many", LAYERS)):
            parts = {
                repeated(own).format(layer): (
                    KINDS[place.kind][0] if place.kind in KINDS else 0,
                    place.shape,
                    content[place.start : place.start + place.nbytes],
                )
                for layer in range(count)
                for own, place in model.tensors.items()
            }
            write_gguf(folder / f"{what}.gguf", model.values | {"qwen3.block_count": count}, parts)
            (folder / what).symlink_to(as_directory(folder / f"{what}.gguf"))
        return
    stored = folder / "source"
    if form in FORMATS:
        stored, _ = checkpoints.write(stored, folder, *FORMATS[form])
    tensors = load_file(stored / "model.safetensors")
    values = json.loads((stored / "config.json").read_text())
    for what, count in (("few", 2), ("many", LAYERS)):
        (folder / what).mkdir()
        (folder / what / "config.json").write_text(json.dumps(values | {"num_hidden_layers": count}))
        where = {}
        for layer in range(count):
            shard = {repeated(own).format(layer): each for own, each in tensors.items()}
            shard = {own: each for own, each in shard.items() if own not in where}
            where |= dict.fromkeys(shard, f"part-{layer}.safetensors")
            save_file(shard, folder / what / f"part-{layer}.safetensors")
        index = folder / what / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": where}))


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes by case: at most while it loads, and after it."""
    folder = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for number, name in enumerate(CASES):
            write(folder / str(number), name)
    folders = [str(folder / str(number)) for number in range(len(CASES))]
    command = [sys.executable, "-c", _CHILD, *folders]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    shutil.rmtree(folder)
    return {name: json.loads(line) for name, line in zip(CASES, lines, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_loading_takes_little_more_than_what_is_kept(measured: dict[str, dict[str, int]], name: str) -> None:
    found = measured[name]
    assert found["kept"] > 20 << 20, "too little to tell"
    assert found["peak"] <= MOST * found["kept"] + ONE, found
