"""Create params: what a request to a model may set, by name and type."""

TEXT_PARAMS = frozenset(
    [
        "model",
        "instructions",
        "service_tier",
        "user",
        "truncation",
        "prompt_cache_key",
        "safety_identifier",
        "previous_response_id",
    ]
)
"""Create params that are always text, so that `….instructions=Be brief, please (…)` works."""

CREATE_PARAMS = TEXT_PARAMS | frozenset(
    [
        "background",
        "chat_template_kwargs",
        "frequency_penalty",
        "include",
        "input",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "min_p",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning",
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    ]
)
"""Create params of the Responses API and of vLLM. Others may be sent, unless they look like a
misspelling of one of these."""
