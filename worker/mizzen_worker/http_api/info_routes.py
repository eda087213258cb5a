"""Owns what tells about the server: models, probes, metrics, the OpenAPI document; no generation.

``/v1/models`` speaks to each vendor's client in its own shape.
"""

import asyncio
import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mizzen_worker import __version__
from mizzen_worker.contracts.errors import UnavailableError, WorkerError
from mizzen_worker.contracts.operator_names import (
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
    PATH_STARTUP,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.http_api.access import Gate
from mizzen_worker.http_api.anthropic_answers import AnthropicModel, AnthropicModelList
from mizzen_worker.http_api.body import json_response
from mizzen_worker.http_api.endpoint import Endpoint, Handler
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.openai_answers import Model, ModelList
from mizzen_worker.http_api.subrequests import Subrequests
from mizzen_worker.tokenizer.request_state import GenerateInput

_PROBE_LIMIT_S = 20.0
_GET = ("GET", "HEAD")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What native clients ask of a model; its place on the server's disk is nobody's business."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    max_model_len: int | None
    weight_version: str | None
    preferred_sampling_params: None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which Mizzen this is."""

    version: str


def info_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine."""
    return [*_model_endpoints(engine), *_probe_endpoints(engine)]


def _model_endpoints(engine: FrontEngine) -> list[Endpoint]:
    async def models(request: Request) -> Response:
        if "anthropic-version" in request.headers:
            name = engine.served_name
            listed = [_anthropic_model(engine)]
            return json_response(AnthropicModelList(data=listed, first_id=name, last_id=name))
        return json_response(ModelList(data=[_model(engine)]))

    async def model(request: Request) -> Response:
        engine.check_model(request.path_params["name"])
        if "anthropic-version" in request.headers:
            return json_response(_anthropic_model(engine))
        return json_response(_model(engine))

    async def model_info(_request: Request) -> Response:
        capacity = engine.manager.workers.capacity()
        return json_response(
            ModelInfo(
                model_path=engine.served_name,
                tokenizer_path=engine.served_name,
                max_model_len=None if capacity is None else capacity.context_length,
                weight_version=engine.system_fingerprint(),
            )
        )

    async def version(_request: Request) -> Response:
        return json_response(Version(version=__version__))

    return [
        Endpoint(
            path="/version",
            handler=version,
            summary="Tell which version this is",
            methods=_GET,
            answers=(Version,),
        ),
        Endpoint(
            path="/v1/models",
            handler=models,
            summary="List the models that are served",
            methods=_GET,
            answers=(ModelList, AnthropicModelList),
        ),
        Endpoint(
            path="/v1/models/{name:path}",
            handler=model,
            summary="Tell about one model",
            methods=_GET,
            answers=(Model, AnthropicModel),
            errors=(404,),
        ),
        *(
            Endpoint(
                path=path,
                handler=model_info,
                summary="Tell about the model (native)",
                methods=_GET,
                answers=(ModelInfo,),
            )
            for path in ("/get_model_info", "/model_info")
        ),
    ]


def _model(engine: FrontEngine) -> Model:
    capacity = engine.manager.workers.capacity()
    return Model(
        id=engine.served_name,
        created=engine.started_at,
        max_model_len=msgspec.UNSET if capacity is None else capacity.context_length,
    )


def _anthropic_model(engine: FrontEngine) -> AnthropicModel:
    capacity = engine.manager.workers.capacity()
    return AnthropicModel(
        id=engine.served_name,
        display_name=engine.served_name,
        created_at=datetime.datetime.fromtimestamp(engine.started_at, datetime.UTC),
        max_input_tokens=(
            None if capacity is None else min(capacity.context_length, capacity.kv_tokens)
        ),
    )


def _probe_endpoints(engine: FrontEngine) -> list[Endpoint]:
    async def live(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        if engine.manager.is_accepting:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("no worker takes requests at the moment\n", status_code=503)

    async def startup(_request: Request) -> Response:
        if engine.manager.workers.num_attached:
            return PlainTextResponse("started\n")
        return PlainTextResponse("no worker has attached yet\n", status_code=503)

    async def metrics(_request: Request) -> Response:
        return PlainTextResponse(await engine.metrics())

    table: tuple[tuple[str, Handler, str, Gate, tuple[int, ...]], ...] = (
        (PATH_LIVE, live, "Tell whether this process lives", Gate.OPEN, ()),
        (PATH_READY, ready, "Tell whether requests are taken", Gate.OPEN, (503,)),
        (PATH_STARTUP, startup, "Tell whether a worker has attached", Gate.OPEN, (503,)),
        (
            "/health_generate",
            _Probe(engine).answer,
            "Tell whether a token can be generated",
            Gate.API,
            (503,),
        ),
        (PATH_METRICS, metrics, "Give the metrics of the front processes", Gate.API, ()),
    )
    return [
        Endpoint(
            path=path,
            handler=handler,
            summary=summary,
            methods=_GET,
            gate=gate,
            errors=errors,
            is_quiet=True,
        )
        for path, handler, summary, gate, errors in table
    ]


class _Probe:
    """Generates one token when asked; whoever asks meanwhile shares the answer."""

    def __init__(self, engine: FrontEngine) -> None:
        self._engine = engine
        self._running: asyncio.Task[str | None] | None = None

    async def answer(self, _request: Request) -> Response:
        """Answer a probe."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._fault())
        fault = await asyncio.shield(self._running)
        if fault is None:
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"{fault}\n", status_code=503)

    async def _fault(self) -> str | None:
        """Give what is wrong, or None."""
        engine = self._engine
        try:
            if not engine.manager.is_accepting:
                msg = "no worker takes requests at the moment"
                raise UnavailableError(msg)
            ids = await engine.encode("a", field="text")
            wanted = GenerateInput(
                prompt_ids=ids,
                sampling=SamplingParams(max_new_tokens=1, seed=0, temperature=0.0),
                deadline_s=_PROBE_LIMIT_S,
            )
            async with Subrequests(engine, [wanted], None) as subrequests:
                await subrequests.collect()
        except WorkerError as error:
            return str(error)
        return None
