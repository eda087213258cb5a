"""The OpenAPI document is true: whatever is sent, answers are as it says, and never a fault.

Schemathesis makes the input, right and wrong, from the document itself. Ranges are narrowed where
most of what is right would otherwise be refused for its size; answers are checked as they are.
"""

import asyncio
import copy
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from tests.scale import count
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.http_api.access import AccessKeys

ADMIN = "admin-key-admin-key"
HEADERS = {"Authorization": f"Bearer {ADMIN}", "Connection": "close"}
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
MAX_EXAMPLES = count(check=2, full=40)
NARROWER: dict[str, dict[str, Any]] = {
    "model": {"enum": [MODEL]},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 20},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 20},
    "max_new_tokens": {"type": "integer", "minimum": 0, "maximum": 20},
    "n": {"type": "integer", "minimum": 1, "maximum": 3},
    "timeout_s": {"type": "number", "minimum": 5, "maximum": 50},
    "stop_regex": {"type": "string", "pattern": "^[a-z]{1,9}$"},
    "logit_bias": {"type": "object", "properties": {"5": {"type": "number", "maximum": 9}}},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve from a thread of its own: the client of these tests waits by blocking."""
    folder = tmp_path_factory.mktemp("model")
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with Stack(folder, keys=AccessKeys(admin=(ADMIN.encode(),))) as stack:
            found.append(stack.url)
            ready.set()
            await asyncio.to_thread(done.wait)
            await stack.until(lambda: stack.num_running == 0)
            assert stack.manager.num_live == 0

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    done.set()
    thread.join()


def _narrowed(document: dict[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for schema in document["components"]["schemas"].values():
        for name, narrower in NARROWER.items():
            if name in schema.get("properties", {}):
                schema["properties"][name] = narrower
    return document


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_as_the_document_says(url: str, mode: GenerationMode) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    if mode is GenerationMode.POSITIVE:
        document = _narrowed(document)
    schema = schemathesis.openapi.from_dict(document)
    num_ok = 0
    paths = set()
    for operation in (result.ok() for result in schema.get_all_operations()):
        has_input = bool(operation.body or operation.path_parameters)
        if operation.body or mode is GenerationMode.POSITIVE:
            statuses = _ask(url, operation, mode, max_examples=MAX_EXAMPLES if has_input else 1)
            paths.add(operation.path)
            num_ok += 200 in statuses
    if mode is GenerationMode.POSITIVE:
        assert paths == set(document["paths"])
        assert num_ok >= len(paths) - 1


def _ask(
    url: str, operation: schemathesis.APIOperation, mode: GenerationMode, *, max_examples: int
) -> set[int]:
    statuses = set()
    checks = [*CHECKS, *([negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])]

    @settings(max_examples=max_examples, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(base_url=url, headers=HEADERS, timeout=30)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (case.body, answer.text)
        case.validate_response(answer, checks=checks)

    ask()
    return statuses
