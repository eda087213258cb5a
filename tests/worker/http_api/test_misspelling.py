"""Unknown fields: nearly one of ours is refused, somebody else's is not."""

import pytest

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.misspelling import refuse_misspelt
from mizzen_worker.http_api.native_requests import GenerateRequest, NativeSampling
from mizzen_worker.http_api.openai_requests import ChatRequest

OTHERS = (
    *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key"),
    *("top_a", "typical_p", "tfs_z", "mirostat", "num_ctx", "n_predict", "cache_prompt"),
    *("best", "length_penalty", "include_reasoning", "add_generation_prompt", "extra_body"),
    *("top_logprobs_num", "logprob_start_len", "spaces_between_special_tokens", "detokenize"),
    *("truncate_prompt_tokens", "mm_processor_kwargs"),
)


@pytest.mark.parametrize("kind", [ChatRequest, GenerateRequest, NativeSampling])
def test_fields_of_other_servers_and_our_own_are_left_alone(
    kind: type[ChatRequest | GenerateRequest | NativeSampling],
) -> None:
    refuse_misspelt((*OTHERS, *kind.model_fields), kind.model_fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("max_token", "max_tokens"),
        ("min_new_tokens", "min_tokens"),
        ("stop_token_id", "stop_token_ids"),
        ("repeat_penalty", "repetition_penalty"),
        ("sampling_seed", "seed"),
        ("stop_sequences", "stop"),
    ],
)
def test_what_is_nearly_ours_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(RequestError, match=f"p.{name} is no .* mean p.{meant}") as refused:
        refuse_misspelt([name], ChatRequest.model_fields, prefix="p.")
    assert refused.value.field == f"p.{name}"


def test_a_body_of_many_unknown_names_costs_no_more_than_a_few() -> None:
    names = [f"field_{index}" for index in range(40)]
    refuse_misspelt([*names, "temprature"], ChatRequest.model_fields)
