"""Owns rendering messages with a model's chat template; owns no tokens and no files.

Templates are code of the model's author: they run in jinja2's immutable sandbox, see nothing but
what is listed here, and may loop only over what the caller gave.
"""

import bisect
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mizzen_worker.contracts.errors import ModelLoadError, RequestError

Message = Mapping[str, Any]


_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own code can raise on messages that it was not written for."""


class _TemplateRefusalError(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class ChatTemplate:
    """One compiled template. Immutable."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.globals = {
            "raise_exception": _raise_exception,
            "range": environment.globals["range"],
            "namespace": environment.globals["namespace"],
            "dict": environment.globals["dict"],
        }
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            msg = f"the model's chat template does not compile: {error}"
            raise ModelLoadError(msg) from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Give the prompt of a conversation; raises ``RequestError`` naming the message."""
        for index, message in enumerate(messages):
            if not message.get("role"):
                msg = f"messages[{index}].role is missing"
                raise RequestError(msg, field=f"messages[{index}].role")
        variables = {
            **(arguments or {}),
            **self._tokens,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return self._template.render(variables)
        except _TEMPLATE_FAULTS as error:
            field = f"messages[{self._refused_message(messages, variables)}]"
            verb = "refuses" if isinstance(error, _TemplateRefusalError) else "cannot show"
            msg = f"{field}: the model's chat template {verb} it: {error}"
            raise RequestError(msg, field=field) from error

    def _refused_message(self, messages: Sequence[Message], variables: dict[str, Any]) -> int:
        """Find a message without which the ones before it render; renders log(messages) times."""

        def is_refused_with(index: int) -> bool:
            try:
                self._template.render({**variables, "messages": list(messages[: index + 1])})
            except _TEMPLATE_FAULTS:
                return True
            return False

        last = max(0, len(messages) - 1)
        return bisect.bisect_left(range(last), x=True, key=is_refused_with)


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusalError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
