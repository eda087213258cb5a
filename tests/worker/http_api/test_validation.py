"""The sentence for a value that has none of the forms its field takes."""

import pytest
from pydantic import BaseModel, ValidationError

from mizzen_worker.http_api.native_requests import (
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from mizzen_worker.http_api.openai_requests import CompletionRequest
from mizzen_worker.http_api.validation import sentence_of

TEXTS = "a string or a list of strings"
IDS = "a list of token ids or a list of lists of token ids"
PROMPT = "a string, a list of token ids, a list of strings or a list of lists of token ids"


@pytest.mark.parametrize(
    ("kind", "field", "value", "sentence"),
    [
        (CompletionRequest, "prompt", [1.5], f"prompt[0] is 1.5; prompt must be {PROMPT}"),
        (CompletionRequest, "prompt", [5, "a"], f"prompt[1] is 'a'; prompt must be {PROMPT}"),
        (CompletionRequest, "prompt", ["a", 5], f"prompt[1] is 5; prompt must be {PROMPT}"),
        (CompletionRequest, "prompt", [[5, 1.5]], f"prompt[0][1] is 1.5; prompt must be {PROMPT}"),
        (
            CompletionRequest,
            "prompt",
            [[5], ["a"]],
            f"prompt[1][0] is 'a'; prompt must be {PROMPT}",
        ),
        (CompletionRequest, "prompt", [[5], 6], f"prompt[1] is 6; prompt must be {PROMPT}"),
        (CompletionRequest, "prompt", 3, f"prompt is 3; it must be {PROMPT}"),
        (CompletionRequest, "prompt", [5, -1], "prompt[1] is -1: input should be greater than"),
        (CompletionRequest, "prompt", [[]], "prompt[0] is []; give at least one entry"),
        (CompletionRequest, "stop", [1.5], f"stop[0] is 1.5; stop must be {TEXTS}"),
        (TokenizeRequest, "prompt", ["a", None], f"prompt[1] is None; prompt must be {TEXTS}"),
        (DetokenizeRequest, "tokens", ["a"], f"tokens[0] is 'a'; tokens must be {IDS}"),
        (GenerateRequest, "text", 3, f"text is 3; it must be {TEXTS}"),
        (
            GenerateRequest,
            "input_ids",
            [[5], [True]],
            f"input_ids[1][0] is True; input_ids must be {IDS}",
        ),
        (
            GenerateRequest,
            "return_logprob",
            [1],
            "return_logprob must be a boolean or a list of booleans",
        ),
        (GenerateRequest, "top_logprobs_num", "a", "it must be an integer or a list of integers"),
        (
            GenerateRequest,
            "sampling_params",
            {"stop": ["a", 1]},
            f"sampling_params.stop[1] is 1; sampling_params.stop must be {TEXTS}",
        ),
        (GenerateRequest, "sampling_params", 3, "sampling_params is 3; it must be a JSON object"),
    ],
)
def test_the_wrong_item_and_the_forms_are_named(
    kind: type[BaseModel], field: str, value: object, sentence: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": "m", "prompt": "a", field: value})
    assert sentence in str(sentence_of(caught.value.errors(include_url=False)))
