"""Names that others' dashboards and routers look for."""

import pytest

from ops.runtime.metric_names import BY_NAME

SHOWN = BY_NAME | {metric.older_name: metric for metric in BY_NAME.values() if metric.older_name}
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


@pytest.mark.parametrize("name", VLLM_BOARD)
def test_no_panel_of_the_board_of_vllm_is_empty(name: str) -> None:
    """Its panels choose by `model_name`; one is by `finished_reason`."""
    metric = SHOWN[name]
    assert metric.kind == VLLM_BOARD[name]
    assert "model_name" in metric.labels
    assert ("finished_reason" in metric.labels) == (name == "vllm:request_success")
