"""Flags, files and defaults: one sentence for what is wrong, and the source of what is right."""

from pathlib import Path

import pytest

from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.completion import SHELLS, completion_script
from mizzen_worker.config.env import read_pod_environment
from mizzen_worker.config.foreign_names import FOREIGN_TO_OWN
from mizzen_worker.config.groups import EngineOptions, HttpOptions, ModelOptions, WireOptions
from mizzen_worker.config.option import Role
from mizzen_worker.config.options import OPTIONS, options_of
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.errors import ConfigError


def _parse(role: Role, *arguments: str) -> Configuration:
    parser = make_parser(role, description="d", example="e")
    return parse_command_line(parser, role, arguments)


def test_flag_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "mizzen.yaml"
    file.write_text("http-port: 1234\nkv-tokens: 2048\nmodel: /m\n")
    found = _parse(Role.SERVE, "--config", str(file), "--kv-tokens", "4096")
    assert found.group(EngineOptions).kv_tokens == 4096
    assert found.group(HttpOptions).http_port == 1234
    assert found.group(HttpOptions).http_host == "127.0.0.1"
    assert found.group(ModelOptions).model == Path("/m")
    sources = {flag: value.source for flag, value in found.values.items()}
    assert sources["--kv-tokens"] == "flag"
    assert sources["--http-port"] == f"file {file}"
    assert sources["--page-size"] == "default"


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ((), (16384, 64, 512, 16)),
        (("--device", "cuda"), (None, 256, 8192, 64)),
        (("--device", "cuda:1", "--kv-tokens", "auto"), (None, 256, 8192, 64)),
        (("--device", "cuda", "--page-size", "auto"), (None, 256, 8192, 64)),
        (
            ("--device", "cuda", "--kv-tokens", "64", "--max-chunk-tokens", "32"),
            (64, 256, 32, 64),
        ),
        (("--device", "cuda", "--page-size", "16"), (None, 256, 8192, 16)),
    ],
)
def test_the_device_decides_what_is_left_to_it(
    flags: tuple[str, ...], sizes: tuple[int | None, int, int, int]
) -> None:
    engine = _parse(Role.SERVE, "m", *flags).group(EngineOptions)
    running, chunk = engine.max_running_requests, engine.max_chunk_tokens
    assert (engine.kv_tokens, running, chunk, engine.page_size) == sizes


@pytest.mark.parametrize(
    ("flags", "patience_s"),
    [
        ((), 0.0),
        (("--device", "cuda"), 0.5),
        (("--device", "cuda:1", "--decode-patience", "0"), 0.0),
        (("--decode-patience", "1.5"), 1.5),
    ],
)
def test_answers_wait_for_prompts_on_a_gpu(flags: tuple[str, ...], patience_s: float) -> None:
    assert _parse(Role.SERVE, "m", *flags).group(EngineOptions).decode_patience_s == patience_s


def test_groups_of_other_roles_have_defaults() -> None:
    found = _parse(Role.TOKENIZER, "--model", "m", "--workers", "tcp://a:1, tcp://b:2")
    assert found.group(WireOptions).workers == ("tcp://a:1", "tcp://b:2")
    assert found.group(EngineOptions).page_size == 16
    assert found.group(EngineOptions).max_running_requests == 64


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["m", "--kv-tokens", "x"], "--kv-tokens: 'x' cannot be used; it must be a whole number"),
        (["m", "--decode-patience", "-1"], "it must be 0 seconds or more, or auto"),
        (["m", "--kv-tokens", "1"], "it must be 16 to 2147483647, or auto"),
        (["m", "--memory-fraction", "1.5"], "it must be a number above 0, 1 at most"),
        (["m", "--memory-fraction", "0"], "it must be a number above 0, 1 at most"),
        (["m", "--kv-tokens", "9" * 30], "it must be 16 to 2147483647, or auto"),
        (["m", "--cuda-graphs", "on"], "--cuda-graphs: 'on' needs a GPU; leave it to auto"),
        (["m", "--http-port", "70000"], "it must be 0 to 65535"),
        (["m", "--dtype", "int8"], "--dtype: 'int8' cannot be used; it must be one of auto"),
        (["m", "--tensor-parallel-size", "0"], "it must be 1 to 64"),
        (["m", "--pipeline-parallel-size", "2"], "more than 1 is not available in this version"),
        (
            ["m", "--kv-token", "5"],
            "--kv-token is no flag of mizzen serve; did you mean --kv-tokens?",
        ),
        (
            ["m", "--tp", "2"],
            "--tp is no flag of mizzen serve; did you mean --tensor-parallel-size?",
        ),
        (["m", "--max-model-len=9"], "did you mean --context-length?"),
        (["m", "--listen", "tcp://a:1"], "--listen is no flag of mizzen serve"),
        (["m", "--drain-deadline", "-1"], "it must be 0 seconds or more"),
        (["m", "n"], "one MODEL only: 'n' is too many"),
        (["m", "--model", "n"], "the model is given twice"),
        ([], "--model is missing; give it: model to serve"),
        (["m", "--config", "/nowhere.yaml"], "--config: /nowhere.yaml cannot be read"),
        (["m", "--kv-tokens"], "expected one argument"),
    ],
)
def test_wrong_flags_are_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _parse(Role.SERVE, *arguments)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_of_other_servers_lead_to_options_and_are_none() -> None:
    keys = {option.key for option in OPTIONS}
    assert set(FOREIGN_TO_OWN.values()) <= keys
    assert not keys & set(FOREIGN_TO_OWN)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("kv-token: 5", "'kv-token' is no option of serve; did you mean kv-tokens?"),
        ("dp-size: 2", "did you mean data-parallel-size?"),
        ("kv-tokens: lots", "--kv-tokens: 'lots' cannot be used (in file"),
        ("- a", "holds no options"),
        ("kv-tokens: {a: 1}", "kv-tokens is {'a': 1}"),
        ("a: [", "cannot be read"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        _parse(Role.SERVE, "m", "--config", str(file))
    assert sentence in str(raised.value)


def test_table_and_groups_have_the_same_fields() -> None:
    for role in Role:
        needed = ["--model", "m"]
        found = _parse(role, *needed)
        for group in {option.group for option in OPTIONS}:
            assert found.group(group)  # type: ignore[type-var]
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"MIZZEN_NODE_RANK": "x"}, "MIZZEN_NODE_RANK is 'x'; it must be a whole number"),
        ({"MIZZEN_NODE_RANK": "1"}, "ranks count from 0"),
        ({"MIZZEN_NODE_COUNT": "2"}, "MIZZEN_NODE_COUNT is 2 and MIZZEN_LEADER_ADDRESS is empty"),
        (
            {"MIZZEN_NODE_COUNT": "2", "MIZZEN_LEADER_ADDRESS": "a", "MIZZEN_GROUP_ID": "g"},
            "MIZZEN_GROUP_EPOCH is empty; a group needs it",
        ),
        ({"MIZZEN_NODE_COUNT": "0"}, "from 1 up"),
        ({"MIZZEN_LEADER_ADDRESS": "10.0.0.1:99"}, "is '10.0.0.1:99'; it must be a host's name or"),
        ({"MIZZEN_LEADER_ADDRESS": "tcp://leader"}, "IP address alone, without a port"),
        ({"MIZZEN_LEADER_ADDRESS": "[::1]"}, "MIZZEN_LEADER_ADDRESS is '[::1]'; it must be a host"),
    ],
)
def test_wrong_environment_is_one_sentence(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_pod_environment(environment)
    assert sentence in str(raised.value)


def test_pod_environment_is_read() -> None:
    pod = read_pod_environment({"MIZZEN_ROLE": "worker", "MIZZEN_INSTANCE_ID": "u"})
    assert (pod.role, pod.instance_id, pod.node_count, pod.node_rank) == ("worker", "u", 1, 0)
    assert pod.log_fields() == {"role": "worker"}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_flag(shell: str) -> None:
    script = completion_script(shell, ("serve", "plan"))
    assert "plan" in script
    for role in Role:
        for option in options_of(role):
            assert option.key in script
