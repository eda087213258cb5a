"""Every command line that the operator renders is accepted by the worker's own parser."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.render.worker_args import tokenizer_args, unified_args, worker_args
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.schema import spec_schema
from mizzen_operator.worker_contract import (
    FLAG_DTYPE,
    FREE_FLAGS,
    OWNED_FLAGS,
    VERB_TOKENIZER,
    VERB_UNIFIED,
    VERB_WORKER,
)
from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.option import Role
from mizzen_worker.config.options import OPTIONS, options_of
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.verbs import drain

ENGINE = {
    "contextLength": 2048,
    "pageSize": 16,
    "kvTokens": 4096,
    "dtype": "bfloat16",
    "args": ["--max-running-requests", "8"],
}
WORKER = {"resources": {"limits": {"cpu": "1500m"}}, "drain": {"timeoutSeconds": 60}}


def _parsed(role: Role, arguments: tuple[str, ...]) -> Configuration:
    parser = make_parser(role, description="test", example="test")
    return parse_command_line(parser, role, arguments)


def _services() -> Iterator[Resolved]:
    for topology in ("Unified", "Split"):
        yield resolved(topology=topology)
        yield resolved(topology=topology, engine=ENGINE, worker=WORKER)
        yield resolved(topology=topology, worker={"gpu": {"countPerNode": 1}})
        yield resolved(topology=topology, worker={"parallelism": {"tensor": 2}})
    yield resolved(topology="Split", worker={"parallelism": {"tensor": 4, "nodes": 2}})


def _pods() -> Iterator[dict[str, Any]]:
    for service in _services():
        for obj in render(service, RenderContext(groups=(0,))):
            if obj["kind"] in ("StatefulSet", "Deployment"):
                (container,) = obj["spec"]["template"]["spec"]["containers"]
                yield container


def test_verbs_are_those_of_the_worker() -> None:
    assert Role(VERB_UNIFIED) is Role.SERVE
    assert Role(VERB_WORKER) is Role.WORKER
    assert Role(VERB_TOKENIZER) is Role.TOKENIZER


def test_row_18_every_rendered_command_line_is_accepted() -> None:
    verbs = set()
    for container in _pods():
        command, verb = container["command"]
        verbs.add(verb)
        assert command == "mizzen"
        _parsed(Role(verb), tuple(container["args"]))
    assert verbs == {VERB_UNIFIED, VERB_WORKER, VERB_TOKENIZER}


def test_values_arrive() -> None:
    service = resolved(topology="Split", engine=ENGINE, worker=WORKER)
    values = _parsed(Role.WORKER, worker_args(service)).values
    assert {flag: str(values[flag].value) for flag in ("--threads", "--page-size", "--device")} == {
        "--threads": "1",
        "--page-size": "16",
        "--device": "cpu",
    }
    assert _parsed(Role.TOKENIZER, tokenizer_args(service)).values["--workers"].value
    unified = resolved(engine=ENGINE)
    served = _parsed(Role.SERVE, unified_args(unified)).values["--served-model-name"]
    assert served.value == "demo"


def test_every_owned_flag_exists_and_its_field() -> None:
    known = {option.flag for option in OPTIONS}
    assert set(OWNED_FLAGS) <= known
    for field in OWNED_FLAGS.values():
        part = spec_schema()
        for step in field.split(".") if field else ():
            part = part.get("properties", {}).get(step) or part["additionalProperties"]


@pytest.mark.parametrize("verb", [VERB_UNIFIED, VERB_WORKER])
def test_flags_that_args_may_hold_are_all_others_of_the_worker(verb: str) -> None:
    known = {option.flag for option in options_of(Role(verb))}
    assert FREE_FLAGS[verb] == known - set(OWNED_FLAGS)


def test_number_formats_are_those_of_the_engine() -> None:
    (option,) = (option for option in OPTIONS if option.flag == FLAG_DTYPE)
    engine = spec_schema()["properties"]["engine"]["properties"]
    assert set(engine["dtype"]["enum"]) == set(option.choices)


def test_the_drain_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {tuple(pod["lifecycle"]["preStop"]["exec"]["command"]) for pod in _pods()}
    for command, verb, *arguments in commands:
        assert (command, verb) == ("mizzen", "drain")
        # Nothing listens on this port: the command is parsed, then says so.
        assert drain([*arguments, "--admin-port", "1"]) == 1
    assert "is anything served here?" in capsys.readouterr().err
