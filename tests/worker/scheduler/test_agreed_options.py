"""What the ranks of a group must agree on, and what is refused before any is waited for."""

from pathlib import Path

import pytest
from tests.worker.model_executor.tiny_models import save_tiny
from tests.worker.rank_group.groups import place_of

from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.config.option import Role
from mizzen_worker.config.options import options_of
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.scheduler import engine_setup
from mizzen_worker.scheduler.engine_setup import agreed_options, runner_options


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny(folder, "llama")
    return folder


def agreed(model: Path, *flags: str, size: int = 2) -> dict[str, str]:
    given = ["--model", str(model), "--device", "cpu", *flags]
    parser = make_parser(Role.WORKER, description="", example="")
    engine = parse_command_line(parser, Role.WORKER, given).group(EngineOptions)
    return agreed_options(engine, runner_options(engine, model), place_of(1, model, size=size))


def test_flags_are_named_as_they_are_given(model: Path) -> None:
    named = {name for name in agreed(model) if name.startswith("--")}
    assert named <= {option.flag for option in options_of(Role.WORKER)}
    differing = agreed(model).items() ^ agreed(model, "--queue-ageing", "7").items()
    assert differing == {("--queue-ageing", "30.0"), ("--queue-ageing", "7.0")}
    assert agreed(model, "--threads", "9", "--compile-cache", str(model)) == agreed(model)


def test_ranks_of_other_releases_or_kernels_differ(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = agreed(model)
    monkeypatch.setattr(engine_setup, "__version__", "0.0.1")
    monkeypatch.setattr(engine_setup, "INSTRUCTION_SETS", ())
    monkeypatch.setattr(engine_setup, "_capability", lambda device: "9.0")
    after = agreed(model)
    assert {name for name in before if before[name] != after[name]} <= {
        *("release", "native kernels", "GPU")
    }
    assert (before["GPU"], after["GPU"]) == ("none", "9.0")
    assert after["release"] == "0.0.1"
    assert after["native kernels"] == "no"


def test_a_model_that_the_ranks_cannot_divide_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size: 3 does not divide the model's"):
        agreed(model, size=3)
