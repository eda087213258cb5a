"""Looking at what the cluster serves: told once, taken back, without an answer left as it is."""

import asyncio
import logging
from typing import Any

import pytest
from tests.operator.spec.test_served import document, properties

from mizzen_operator.cluster.definitions import ServedDefinitions
from mizzen_operator.cluster.reader import SERVED_DEFINITIONS
from mizzen_operator.cluster.request import Request
from mizzen_operator.errors import UnavailableError
from mizzen_operator.spec.crd import crd
from mizzen_operator.spec.scaler_crd import scaler_crd


class FakeOpenApi:
    """Answers with the definitions that it has now."""

    def __init__(self) -> None:
        self.definitions = [crd(), scaler_crd()]
        self.is_down = False

    async def call(self, request: Request) -> dict[str, Any]:
        assert request == SERVED_DEFINITIONS
        if self.is_down:
            raise UnavailableError("no answer")
        return document(*self.definitions)


def test_older_definitions_are_told_once_and_newer_ones_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    api, changes = FakeOpenApi(), []
    definitions = ServedDefinitions(api, on_change=lambda: changes.append(1))
    asyncio.run(definitions.look())
    assert (definitions.missing, changes, caplog.text) == ({}, [], "")
    del properties(api.definitions[0], "status")["modelName"]
    for _ in range(3):
        asyncio.run(definitions.look())
    assert (len(changes), caplog.text.count("they lack InferenceService status.modelName")) == (
        1,
        1,
    )
    assert "helm upgrade with installCrds=true" in caplog.text
    api.is_down = True
    asyncio.run(definitions.look())
    assert "cannot compare the definitions" in caplog.text
    assert definitions.missing == {"InferenceService": {("status", "modelName")}}
    api.is_down, api.definitions = False, [crd(), scaler_crd()]
    asyncio.run(definitions.look())
    assert (definitions.missing, len(changes)) == ({}, 2)


def test_it_looks_sooner_while_something_is_missing() -> None:
    api, waits_s = FakeOpenApi(), []
    definitions = ServedDefinitions(api, on_change=lambda: None)

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        if len(waits_s) == 1:
            del properties(api.definitions[0], "status")["modelName"]
        if len(waits_s) == 2:
            api.definitions = [crd(), scaler_crd()]
        if len(waits_s) == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(definitions.keep_looking(every_s=300, retry_s=5, sleep=sleep))
    assert waits_s == [300, 5, 300, 300]
