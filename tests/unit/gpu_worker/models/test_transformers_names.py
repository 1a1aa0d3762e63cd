"""Which tensors of a checkpoint are the parts of each parameter."""

from gpu_worker.models.transformers_names import parts_of
from tests.unit.gpu_worker.behaviour.test_families import random_model
from tests.unit.gpu_worker.models.test_transformers_model import MIXTURES, MODELS

PREFIX = "model.layers.1.mlp.experts"


def test_a_tensor_with_its_own_name() -> None:
    model = random_model(*MODELS["Nemotron"])
    names = model.state_dict()
    assert parts_of(model, names) == {name: ((name,),) for name in names}


def test_tensors_of_a_decoder_without_its_head() -> None:
    model = random_model(*MODELS["Nemotron"])
    found = parts_of(model, ["layers.0.mlp.up_proj.weight"])
    assert found == {"model.layers.0.mlp.up_proj.weight": (("layers.0.mlp.up_proj.weight",),)}


def test_single_experts_are_stacked_in_the_order_of_their_numbers() -> None:
    model = random_model("Ernie4_5_MoeForCausalLM", MIXTURES["ERNIE 4.5 MoE"][1] | {"moe_num_experts": 12})
    names = [f"{PREFIX}.{n}.{part}_proj.weight" for n in range(12) for part in ("up", "down", "gate")]
    found = parts_of(model, sorted(names))
    assert found == {
        f"{PREFIX}.down_proj": (tuple(f"{PREFIX}.{n}.down_proj.weight" for n in range(12)),),
        f"{PREFIX}.gate_up_proj": tuple(
            tuple(f"{PREFIX}.{n}.{part}_proj.weight" for n in range(12)) for part in ("gate", "up")
        ),
    }


def test_experts_of_which_a_part_is_missing_are_not_known() -> None:
    model = random_model(*MIXTURES["ERNIE 4.5 MoE"])
    assert parts_of(model, [f"{PREFIX}.{n}.up_proj.weight" for n in range(4)]) == {}


def test_names_of_no_parameter() -> None:
    assert parts_of(random_model(*MODELS["Nemotron"]), ["visual.weight"]) == {}


def test_experts_of_which_transformers_has_no_rule() -> None:
    """GGUF files of Gemma 4 have experts in a stack, which is taken apart."""
    model = random_model(*MIXTURES["Gemma 4 MoE, keys as values"])
    stem = "model.layers.1.experts"
    both = [f"{stem}.{n}.gate_up_proj.weight" for n in range(4)]
    assert parts_of(model, both) == {f"{stem}.gate_up_proj": (tuple(both),)}
    apart = [f"{stem}.{n}.{part}_proj.weight" for n in range(4) for part in ("up", "gate")]
    assert parts_of(model, apart) == {f"{stem}.gate_up_proj": (tuple(apart[1::2]), tuple(apart[::2]))}
    assert parts_of(model, apart[1:]) == {}
