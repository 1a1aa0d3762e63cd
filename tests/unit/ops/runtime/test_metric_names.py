"""Names that others' dashboards and routers look for."""

import pytest

from ops.runtime.metric_names import BY_NAME

SHOWN = BY_NAME | {metric.other_name: metric for metric in BY_NAME.values() if metric.other_name}
VLLM_BOARD = {
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
}
"""What the panels of vLLM's example board (`grafana.json`) ask for, with its kind."""
VLLM_BOARDS = VLLM_BOARD | {
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:spec_decode_num_drafts": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
}
"""And what its boards of traffic, KV memory and speculation ask for that has a meaning here."""


@pytest.mark.parametrize("name", VLLM_BOARDS)
def test_no_panel_of_the_boards_of_vllm_is_empty(name: str) -> None:
    """Its panels choose by `model_name`; one is by `finished_reason`."""
    metric = SHOWN[name]
    assert metric.kind == VLLM_BOARDS[name]
    assert "model_name" in metric.labels
    assert ("finished_reason" in metric.labels) == (name == "vllm:request_success")
