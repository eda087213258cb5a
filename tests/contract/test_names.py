"""Both sides spell every shared name alike."""

import mizzen_operator.worker_contract as operator_side
import mizzen_worker.contracts.operator_names as worker_side

_PREFIXES = ("PORT_", "PATH_", "ENV_", "CURVE_", "FLAG_")


def _shared(module: object) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.startswith(_PREFIXES)}


def test_names_are_equal_on_both_sides() -> None:
    assert _shared(operator_side) == _shared(worker_side)
    assert len(_shared(operator_side)) > 30


def test_ports_differ_from_each_other() -> None:
    ports = [value for name, value in _shared(operator_side).items() if name.startswith("PORT_")]
    assert len(set(ports)) == len(ports)


def test_flags_that_the_operator_sets_are_refused_in_args() -> None:
    free = {operator_side.FLAG_MAX_RUNNING}
    flags = {value for name, value in _shared(operator_side).items() if name.startswith("FLAG_")}
    assert set(operator_side.OWNED_FLAGS) == flags - free


def test_every_variable_of_the_contract_starts_with_the_reserved_prefix() -> None:
    names = [value for name, value in _shared(operator_side).items() if name.startswith("ENV_")]
    assert all(str(name).startswith(operator_side.OWNED_ENV_PREFIX) for name in names)
