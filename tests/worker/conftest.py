"""Owns what tests of the worker share: how interpreted kernels call functions of theirs."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick_calls_of_interpreted_functions() -> None:
    """Let a kernel's functions not patch Triton's language again at each call.

    It is patched for the launch already; only for Triton's own functions, which see it under
    another name, there is something to do, and that once. Half of the time goes there otherwise.
    """
    # Not at the top: whether kernels are interpreted is set before Triton is loaded.
    from triton.runtime import interpreter

    patched = set()

    def call(function: interpreter.InterpretedFunction, *arguments: object, **named: object):
        if function.fn.__module__ not in patched:
            patched.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call
