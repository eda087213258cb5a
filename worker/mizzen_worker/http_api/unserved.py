"""Owns which fields are known but not served: with a value that would change the answer they are
refused by name, never ignored. Pure. Fields that nobody knows are ``misspelling.py``'s.
"""

from collections.abc import Collection, Mapping
from typing import Any

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.validation import shown

NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto", {"type": "none"}, {"type": "auto"}),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "reasoning": (),
    "thinking": ({"type": "disabled"},),
    "verbosity": ("medium",),
    "store": (False,),
    "background": (False,),
    "service_tier": ("auto", "default", "standard_only"),
    "container": (),
    "mcp_servers": ([],),
    "context_management": (),
    "output_config": (),
    "output_format": (),
    "regex": ("",),
    "ebnf": ("",),
    "json_schema": ("",),
    "structural_tag": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "lora_path": ("",),
    "input_embeds": (),
    "image_data": ([],),
    "audio_data": ([],),
    "video_data": ([],),
    "return_hidden_states": (False,),
    "token_ids_logprob": ([],),
    "session_params": (),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prompt_embeds": (),
}
"""Fields not served: the values that mean what happens anyway. ``None`` is always one of them."""


def refuse_unserved(body: Mapping[str, Any], *, served: Collection[str], prefix: str = "") -> None:
    """Raise ``RequestError`` for the first field, not among the served, whose meaning is lost."""
    for name, neutral in NEUTRAL_VALUES.items():
        value = body.get(name)
        if value is None or name in served:
            continue
        if any(type(value) is type(one) and value == one for one in neutral):
            continue
        if isinstance(value, float) and value in neutral:
            continue
        msg = f"{prefix}{name} is {shown(value)}, which this server does not serve; leave it out"
        raise RequestError(msg, field=f"{prefix}{name}")
