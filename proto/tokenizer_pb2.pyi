from proto import images_pb2 as _images_pb2
from proto import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallSyntax(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_CALLS: _ClassVar[CallSyntax]
    JSON_CALLS: _ClassVar[CallSyntax]
    NAMED_JSON: _ClassVar[CallSyntax]
    ELEMENTS: _ClassVar[CallSyntax]
    PYTHON_CALLS: _ClassVar[CallSyntax]
    BARE_KEYS: _ClassVar[CallSyntax]
    NESTED: _ClassVar[CallSyntax]
NO_CALLS: CallSyntax
JSON_CALLS: CallSyntax
NAMED_JSON: CallSyntax
ELEMENTS: CallSyntax
PYTHON_CALLS: CallSyntax
BARE_KEYS: CallSyntax
NESTED: CallSyntax

class TokenizeRequest(_message.Message):
    __slots__ = ("request", "names")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    request: TextRequest
    names: bool
    def __init__(self, request: _Optional[_Union[TextRequest, _Mapping]] = ..., names: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "tokens", "text", "names")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    text: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., text: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("request_id", "text", "tokens", "pair", "chat", "pooling", "raw", "dimensions", "truncate_prompt_tokens", "cache_salt", "tenant", "user", "priority", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    tokens: TokenIds
    pair: TextPair
    chat: Conversation
    pooling: _sampling_pb2.Pooling
    raw: bool
    dimensions: int
    truncate_prompt_tokens: int
    cache_salt: str
    tenant: str
    user: str
    priority: int
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., pair: _Optional[_Union[TextPair, _Mapping]] = ..., chat: _Optional[_Union[Conversation, _Mapping]] = ..., pooling: _Optional[_Union[_sampling_pb2.Pooling, str]] = ..., raw: _Optional[bool] = ..., dimensions: _Optional[int] = ..., truncate_prompt_tokens: _Optional[int] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., priority: _Optional[int] = ..., adapter: _Optional[str] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("query", "document")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    query: str
    document: str
    def __init__(self, query: _Optional[str] = ..., document: _Optional[str] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embedding", "tokens", "label")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    embedding: bytes
    tokens: int
    label: str
    def __init__(self, embedding: _Optional[bytes] = ..., tokens: _Optional[int] = ..., label: _Optional[str] = ...) -> None: ...

class TextRequest(_message.Message):
    __slots__ = ("request_id", "text", "tokens", "chat", "infill", "sampling", "max_tokens", "most_tokens", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "n", "cache_salt", "resumed", "fingerprint", "tenant", "user", "priority", "beams", "rolling_context", "echo", "return_prompt_tokens", "scored_tokens", "shape", "bad_words", "dry_breakers", "include_stop_text", "truncate_prompt_tokens", "add_special_tokens", "no_text", "prediction", "thinking_budget", "lenient_budget", "left_out", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    INFILL_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    ROLLING_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    RETURN_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    DRY_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_TEXT_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    THINKING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    LENIENT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    tokens: TokenIds
    chat: Conversation
    infill: Infill
    sampling: _sampling_pb2.SamplingParams
    max_tokens: int
    most_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    skip_special_tokens: bool
    n: int
    cache_salt: str
    resumed: _containers.RepeatedCompositeFieldContainer[TextSoFar]
    fingerprint: str
    tenant: str
    user: str
    priority: int
    beams: _sampling_pb2.BeamSearch
    rolling_context: bool
    echo: bool
    return_prompt_tokens: bool
    scored_tokens: int
    shape: Shape
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    dry_breakers: _containers.RepeatedScalarFieldContainer[str]
    include_stop_text: bool
    truncate_prompt_tokens: int
    add_special_tokens: bool
    no_text: bool
    prediction: str
    thinking_budget: int
    lenient_budget: bool
    left_out: _containers.RepeatedScalarFieldContainer[str]
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Conversation, _Mapping]] = ..., infill: _Optional[_Union[Infill, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., most_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., skip_special_tokens: _Optional[bool] = ..., n: _Optional[int] = ..., cache_salt: _Optional[str] = ..., resumed: _Optional[_Iterable[_Union[TextSoFar, _Mapping]]] = ..., fingerprint: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., priority: _Optional[int] = ..., beams: _Optional[_Union[_sampling_pb2.BeamSearch, _Mapping]] = ..., rolling_context: _Optional[bool] = ..., echo: _Optional[bool] = ..., return_prompt_tokens: _Optional[bool] = ..., scored_tokens: _Optional[int] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ..., bad_words: _Optional[_Iterable[str]] = ..., dry_breakers: _Optional[_Iterable[str]] = ..., include_stop_text: _Optional[bool] = ..., truncate_prompt_tokens: _Optional[int] = ..., add_special_tokens: _Optional[bool] = ..., no_text: _Optional[bool] = ..., prediction: _Optional[str] = ..., thinking_budget: _Optional[int] = ..., lenient_budget: _Optional[bool] = ..., left_out: _Optional[_Iterable[str]] = ..., adapter: _Optional[str] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("json_schema", "regex", "choice", "grammar", "structural_tag", "calls", "lenient", "param", "or_calls", "compact")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    LENIENT_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    OR_CALLS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    choice: str
    grammar: str
    structural_tag: str
    calls: CallShape
    lenient: bool
    param: str
    or_calls: CallShape
    compact: bool
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[str] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[str] = ..., calls: _Optional[_Union[CallShape, _Mapping]] = ..., lenient: _Optional[bool] = ..., param: _Optional[str] = ..., or_calls: _Optional[_Union[CallShape, _Mapping]] = ..., compact: _Optional[bool] = ...) -> None: ...

class CallShape(_message.Message):
    __slots__ = ("required", "single", "function", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: InputGrammar
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[InputGrammar, _Mapping]] = ...) -> None: ...
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    SINGLE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    required: bool
    single: bool
    function: str
    inputs: _containers.MessageMap[str, InputGrammar]
    def __init__(self, required: _Optional[bool] = ..., single: _Optional[bool] = ..., function: _Optional[str] = ..., inputs: _Optional[_Mapping[str, InputGrammar]] = ...) -> None: ...

class InputGrammar(_message.Message):
    __slots__ = ("syntax", "definition")
    SYNTAX_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    syntax: str
    definition: str
    def __init__(self, syntax: _Optional[str] = ..., definition: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Infill(_message.Message):
    __slots__ = ("before", "after", "files")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    before: str
    after: str
    files: _containers.RepeatedCompositeFieldContainer[ProjectFile]
    def __init__(self, before: _Optional[str] = ..., after: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ProjectFile, _Mapping]]] = ...) -> None: ...

class ProjectFile(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages", "template_arguments", "tools", "documents", "no_generation_prompt", "continue_final_message", "template")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NO_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    template_arguments: str
    tools: str
    documents: str
    no_generation_prompt: bool
    continue_final_message: bool
    template: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., template_arguments: _Optional[str] = ..., tools: _Optional[str] = ..., documents: _Optional[str] = ..., no_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., template: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "no_content", "images")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    NO_CONTENT_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    reasoning: str
    no_content: bool
    images: _containers.RepeatedCompositeFieldContainer[ContentImage]
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., reasoning: _Optional[str] = ..., no_content: _Optional[bool] = ..., images: _Optional[_Iterable[_Union[ContentImage, _Mapping]]] = ...) -> None: ...

class ContentImage(_message.Message):
    __slots__ = ("file", "offset", "low_detail")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOW_DETAIL_FIELD_NUMBER: _ClassVar[int]
    file: _images_pb2.ImageFile
    offset: int
    low_detail: bool
    def __init__(self, file: _Optional[_Union[_images_pb2.ImageFile, _Mapping]] = ..., offset: _Optional[int] = ..., low_detail: _Optional[bool] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TextSoFar(_message.Message):
    __slots__ = ("index", "token_ids", "text_length", "finished")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text_length: int
    finished: bool
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text_length: _Optional[int] = ..., finished: _Optional[bool] = ...) -> None: ...

class TextChunk(_message.Message):
    __slots__ = ("deltas", "prompt", "prompt_logprobs", "predicted", "part", "parts_left")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[TextDelta]
    prompt: PromptInfo
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenText]
    predicted: _sampling_pb2.PredictedTokens
    part: bytes
    parts_left: int
    def __init__(self, deltas: _Optional[_Iterable[_Union[TextDelta, _Mapping]]] = ..., prompt: _Optional[_Union[PromptInfo, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenText, _Mapping]]] = ..., predicted: _Optional[_Union[_sampling_pb2.PredictedTokens, _Mapping]] = ..., part: _Optional[bytes] = ..., parts_left: _Optional[int] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("token_ids", "tokens", "cached_tokens", "fingerprint", "format", "text")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    cached_tokens: int
    fingerprint: str
    format: AnswerFormat
    text: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., format: _Optional[_Union[AnswerFormat, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class AnswerFormat(_message.Message):
    __slots__ = ("thought_begin", "thought_end", "thinking", "thoughts_anywhere", "call_begin", "call_end", "call_opening", "call_syntax", "call_header", "delimiters", "call_first", "call_text", "argument_text", "call_demanded", "begun", "arguments_text", "answer_begin", "answer_end", "call_bare")
    THOUGHT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    THOUGHT_END_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    THOUGHTS_ANYWHERE_FIELD_NUMBER: _ClassVar[int]
    CALL_BEGIN_FIELD_NUMBER: _ClassVar[int]
    CALL_END_FIELD_NUMBER: _ClassVar[int]
    CALL_OPENING_FIELD_NUMBER: _ClassVar[int]
    CALL_SYNTAX_FIELD_NUMBER: _ClassVar[int]
    CALL_HEADER_FIELD_NUMBER: _ClassVar[int]
    DELIMITERS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIRST_FIELD_NUMBER: _ClassVar[int]
    CALL_TEXT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_TEXT_FIELD_NUMBER: _ClassVar[int]
    CALL_DEMANDED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_END_FIELD_NUMBER: _ClassVar[int]
    CALL_BARE_FIELD_NUMBER: _ClassVar[int]
    thought_begin: str
    thought_end: str
    thinking: bool
    thoughts_anywhere: bool
    call_begin: _containers.RepeatedScalarFieldContainer[str]
    call_end: str
    call_opening: str
    call_syntax: CallSyntax
    call_header: str
    delimiters: _containers.RepeatedScalarFieldContainer[str]
    call_first: _containers.RepeatedScalarFieldContainer[str]
    call_text: str
    argument_text: str
    call_demanded: bool
    begun: str
    arguments_text: str
    answer_begin: str
    answer_end: str
    call_bare: bool
    def __init__(self, thought_begin: _Optional[str] = ..., thought_end: _Optional[str] = ..., thinking: _Optional[bool] = ..., thoughts_anywhere: _Optional[bool] = ..., call_begin: _Optional[_Iterable[str]] = ..., call_end: _Optional[str] = ..., call_opening: _Optional[str] = ..., call_syntax: _Optional[_Union[CallSyntax, str]] = ..., call_header: _Optional[str] = ..., delimiters: _Optional[_Iterable[str]] = ..., call_first: _Optional[_Iterable[str]] = ..., call_text: _Optional[str] = ..., argument_text: _Optional[str] = ..., call_demanded: _Optional[bool] = ..., begun: _Optional[str] = ..., arguments_text: _Optional[str] = ..., answer_begin: _Optional[str] = ..., answer_end: _Optional[str] = ..., call_bare: _Optional[bool] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("index", "text", "token_ids", "finish_reason", "stop_string", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: _sampling_pb2.FinishReason
    stop_string: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenText]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenText, _Mapping]]] = ...) -> None: ...

class TokenText(_message.Message):
    __slots__ = ("token_id", "text", "utf8", "logprob", "top", "unseen", "rank", "text_offset")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UTF8_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    utf8: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenText]
    unseen: bool
    rank: int
    text_offset: int
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., utf8: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenText, _Mapping]]] = ..., unseen: _Optional[bool] = ..., rank: _Optional[int] = ..., text_offset: _Optional[int] = ...) -> None: ...
