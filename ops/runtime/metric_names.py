"""Every metric of Quire. What vLLM measures, too, has vLLM's name and meaning, so that its dashboards and
the routers that read its metrics work. Durations are in seconds.

All have the label `engine` besides those that stand here: the id of the process that measured.
"""

from dataclasses import replace

from ops.runtime.metrics import Metric

MODEL = ("model_name",)

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
_FIRST_TOKEN = (*_FIRST, 40.0, 80.0, 160.0, 640.0, 2560.0)
_LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
_WHOLE = (0.001, 0.01, 0.1, *_LONG, 480.0, 960.0, 1920.0, 7680.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


def _histogram(name: str, help: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, help, "histogram", MODEL + labels, bounds)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, help, "counter", MODEL + labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, help, "gauge", MODEL + labels)


# --- answers, as clients see them: measured by the gateway ---

END_TO_END = _histogram(
    "vllm:e2e_request_latency_seconds", "From a request to the end of its answer.", _WHOLE
)
FIRST_TOKEN = _histogram(
    "vllm:time_to_first_token_seconds", "From a request to the first token of its answer.", _FIRST_TOKEN
)
INTER_TOKEN = _histogram(
    "vllm:inter_token_latency_seconds", "Between two deliveries of tokens of a sequence.", _SHORT
)
INTER_TOKEN = replace(INTER_TOKEN, other_name="vllm:time_per_output_token_seconds")
PER_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds",
    "Of a sequence: mean time of a token after the first.",
    _SHORT,
)
PROMPT_TOKENS = _counter("vllm:prompt_tokens", "Tokens of prompts that were computed or found in the cache.")
GENERATION_TOKENS = _counter("vllm:generation_tokens", "Tokens of answers.")
REQUEST_SUCCESS = _counter(
    "vllm:request_success",
    "Sequences that ended: 'stop', 'length', 'abort' (the client left) or 'error' (of the deployment).",
    "finished_reason",
)
REQUEST_PROMPT_TOKENS = _histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
REQUEST_GENERATION_TOKENS = _histogram("vllm:request_generation_tokens", "Tokens of a sequence.", _TOKENS)
PARAMS_N = _histogram("vllm:request_params_n", "Sequences of a prompt.", (1.0, 2.0, 5.0, 10.0, 20.0))
PARAMS_MAX_TOKENS = _histogram(
    "vllm:request_params_max_tokens", "`max_tokens` of requests that give it.", _TOKENS
)
MAX_GENERATION_TOKENS = _histogram(
    "vllm:request_max_num_generation_tokens", "Tokens of the longest sequence of a prompt.", _TOKENS
)
CALLS_UNDER_WAY = _gauge("quire:calls_under_way", "Prompts that the services behind the gateway work on.")
CALLS_WAITING = _gauge("quire:calls_waiting", "Prompts that wait at the gateway for a place.")
REFUSED = _counter("quire:requests_refused", "Requests that found no room to wait in.")
RESUMED = _counter("quire:answers_resumed", "Answers that went on in another process, or in their next turn.")
TENANT_TOKENS = _counter(
    "quire:tenant_tokens", "Tokens of prompts and answers. Without a key a tenant is an address.", "tenant"
)

IGNORED = Metric(
    "quire:fields_ignored",
    "Fields of requests that nobody knows, and that had no effect.",
    "counter",
    ("field",),
)
JOBS_UNDER_WAY = Metric(
    "quire:jobs_under_way", "Background responses and batches that a gateway works at.", "gauge", ("kind",)
)
JOBS_TAKEN_OVER = Metric(
    "quire:jobs_taken_over",
    "Jobs that a gateway has taken up where another had left them.",
    "counter",
    ("kind",),
)

# --- the batch and its memory: measured by the scheduler ---

RUNNING = _gauge("vllm:num_requests_running", "Sequences in the batches of the workers.")
WAITING = _gauge("vllm:num_requests_waiting", "Requests that wait at the scheduler.")
WAITING_BY_REASON = _gauge(
    "vllm:num_requests_waiting_by_reason", "The same: all of them wait for 'capacity'.", "reason"
)
KV_USAGE = _gauge("vllm:kv_cache_usage_perc", "Part of the KV blocks that sequences hold, from 0 to 1.")
KV_USAGE = replace(KV_USAGE, other_name="vllm:gpu_cache_usage_perc")
PREFIX_QUERIES = _counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked up in the cache.")
PREFIX_HITS = _counter("vllm:prefix_cache_hits", "Tokens of prompts that were found in the cache.")
PREFIX_HITS = replace(PREFIX_HITS, other_name="vllm:prompt_tokens_cached")
PREEMPTIONS = _counter("vllm:num_preemptions", "Sequences that gave up their place in the batch.")
ITERATION_TOKENS = _histogram(
    "vllm:iteration_tokens_total",
    "Tokens that a step computes.",
    (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
)
QUEUE = _histogram("vllm:request_queue_time_seconds", "From a request to its place in a batch.", _WHOLE)
PREFILL = _histogram("vllm:request_prefill_time_seconds", "From its place to its first token.", _WHOLE)
DECODE = _histogram("vllm:request_decode_time_seconds", "From its first token to its end.", _WHOLE)
INFERENCE = _histogram("vllm:request_inference_time_seconds", "From its place to its end.", _WHOLE)
DRAFTED_ROWS = _counter("vllm:spec_decode_num_drafts", "Rows with drafts that were verified.")
DRAFT_TOKENS = _counter("vllm:spec_decode_num_draft_tokens", "Drafts that were verified.")
ACCEPTED_TOKENS = _counter("vllm:spec_decode_num_accepted_tokens", "Drafts that held.")
BLOCKS = _gauge(
    "quire:kv_blocks",
    "KV blocks: 'held' by sequences, 'idle' (free, but cached) or 'empty'; 'shared' are part of 'held'.",
    "state",
)
CACHE_CONFIG = _gauge(
    "vllm:cache_config_info",
    "1; its labels say what the KV memory consists of.",
    "block_size",
    "num_gpu_blocks",
)
LORA = _gauge(
    "vllm:lora_requests_info",
    "The time now; its labels say how many LoRA adapters there are, and which have requests.",
    "max_lora",
    "waiting_lora_adapters",
    "running_lora_adapters",
)
WASTE = _gauge("quire:kv_waste_ratio", "Part of the positions of held blocks that no token fills.")
STEPS = _counter("quire:steps", "Steps that workers were given.")
STEP_SECONDS = _histogram("quire:step_seconds", "Time of a step in the worker.", _SHORT)
FORKED = _counter("quire:forks", "Sequences that began with the blocks of another.")
COPIED = _counter("quire:blocks_copied", "Blocks that were copied before a sequence wrote to them.")
SWAPPED_OUT = _counter("quire:blocks_swapped_out", "Blocks whose content went to host memory.")
SWAPPED_IN = _counter("quire:blocks_swapped_in", "Blocks whose content came back from host memory.")
WORKERS = _gauge("quire:workers", "Workers that serve this scheduler.")
WORKERS_LOST = _counter("quire:workers_lost", "Workers that this scheduler has lost.")

FORCED = _counter(
    "quire:forced_tokens",
    "Tokens that grammars forced, and that took no step of their own: drafts that held.",
)

# --- what is seen and sampled: measured by the worker ---

IMAGES_SEEN = _counter(
    "quire:images_seen",
    "Images that vision towers have seen. One whose tokens are all cached is not seen again.",
)
IMAGE_SECONDS = _counter("quire:image_seconds", "Time that steps took to see images.")
MASKED_ROWS = _counter("quire:masked_rows", "Rows of steps that sampled among the tokens a grammar allows.")

# --- calls on their way: measured by the processes that serve them ---

DOOR_WAIT = _histogram(
    "quire:door_wait_seconds",
    "Time that a call lay in a service's stream before it was taken.",
    _FIRST,
    "service",
)
DOOR_CALLS = _gauge(
    "quire:door_calls",
    "Calls in a service's stream: 'waiting', or 'pending' (taken, not accepted).",
    "service",
    "state",
)
DOOR_OLDEST = _gauge("quire:door_oldest_seconds", "Age of the oldest call in a service's stream.", "service")

# --- of Redis: measured by the gateways ---

REDIS_MEMORY = Metric(
    "quire:redis_memory_ratio", "Part of Redis's maxmemory that is used; 0 if it has none.", "gauge"
)

REDIS_UP = Metric(
    "quire:redis_up", "1 if the gateway can write to Redis, 0 if that is away, full or read-only.", "gauge"
)

# --- of every process ---

START_TIME = Metric(
    "quire:process_start_time_seconds",
    "When the process started, in seconds since 1970.",
    "gauge",
    ("service",),
)

CPU = Metric("quire:process_cpu_seconds", "CPU time of the process.", "counter")
RESIDENT = Metric("quire:process_resident_bytes", "Memory of the process that is in RAM.", "gauge")
SERVING = Metric("quire:calls_served_now", "Calls that the process serves.", "gauge")
LEASES_LOST = Metric("quire:leases_lost", "Times that the process has lost its lease.", "counter")
DEAD_LETTERS = Metric("quire:dead_letters", "Malformed entries that the process has put aside.", "counter")

BY_NAME = {metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)}
"""All of them."""
