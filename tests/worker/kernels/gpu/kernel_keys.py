"""Names of all kernels in Triton's cache, as a program: prints them as JSON, and what is wrong.

Run with ``first`` or ``last``: the modules whose kernels are hashed first, in the order of names.
"""

import importlib
import json
import pkgutil
import sys

from triton.language import constexpr
from triton.runtime.jit import JITCallable

import mizzen_worker.kernels.gpu
from mizzen_worker.kernels.gpu.cache_keys import settle_key


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(mizzen_worker.kernels.gpu.__path__)]
    keys: dict[str, int | str] = {}
    ambiguous: list[str] = []
    for name in names if sys.argv[1] == "first" else reversed(names):
        module = importlib.import_module(f"{mizzen_worker.kernels.gpu.__name__}.{name}")
        for function in vars(module).values():
            if isinstance(function, JITCallable) and function.__module__ == module.__name__:
                settle_key(function)
                keys[f"{name}.{function.__name__}"] = function.cache_key
                ambiguous += _ambiguous(function)
    print(json.dumps({"keys": keys, "ambiguous": ambiguous}))


def _ambiguous(function: JITCallable) -> list[str]:
    """Constants of one name with several values: Triton 3.6 orders them by address."""
    values: dict[str, set[str]] = {}
    for (name, _), (value, _) in function.used_global_vals.items():
        if isinstance(value, constexpr):
            values.setdefault(name, set()).add(repr(value))
    return [f"{function.__name__}: {name}" for name, found in values.items() if len(found) > 1]


if __name__ == "__main__":
    main()
