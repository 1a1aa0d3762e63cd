"""Which architectures are encoders."""

from typing import Any

import pytest
import transformers

from ops.model_directory.encoder import FAMILIES, encoder_family


@pytest.mark.parametrize(
    ("architectures", "family"),
    [
        (["BertModel"], "Bert"),
        (["XLMRobertaForSequenceClassification"], "XLMRoberta"),
        (["ModernBertForMaskedLM"], "ModernBert"),
        (["DebertaV2ForSequenceClassification"], "DebertaV2"),
        (["EmbeddingGemma2Model"], "EmbeddingGemma2"),
        (["BertForQuestionAnswering"], None),
        (["BertLMHeadModel"], None),
        (["MistralModel"], None),
        (["Qwen3ForSequenceClassification"], None),
        (["Model"], None),
        (["BertModel", "BertForMaskedLM"], None),
        ([3], None),
        ("BertModel", None),
        (None, None),
    ],
)
def test_by_architecture(architectures: Any, family: str | None) -> None:
    assert encoder_family({"architectures": architectures}) == family


@pytest.mark.parametrize(
    ("architecture", "bidirectional", "family"),
    [
        ("Gemma3TextModel", True, "Gemma3Text"),
        ("Gemma3TextModel", False, None),
        ("Gemma3TextModel", None, None),
        ("Gemma3ForCausalLM", True, None),
        ("Gemma3TextForSequenceClassification", True, None),
    ],
)
def test_a_decoder_s_layers_whose_tokens_see_each_other(
    architecture: str, bidirectional: bool | None, family: str | None
) -> None:
    config = {"architectures": [architecture], "use_bidirectional_attention": bidirectional}
    assert encoder_family(config) == family


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_transformers_has_them(family: str) -> None:
    for head in ("Model", "ForSequenceClassification"):
        assert hasattr(transformers, family + head)
