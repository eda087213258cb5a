"""Templates run in a sandbox, and what they refuse is said with the message it is about."""

import pytest
from tests.worker.byte_vocabulary import TEMPLATE

from mizzen_worker.contracts.errors import ModelLoadError, RequestError
from mizzen_worker.tokenizer.chat_template import ChatTemplate


def _template(source: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def test_messages_are_rendered() -> None:
    messages = [{"role": "user", "content": "hi {{ 1 + 1 }}"}]
    assert _template().render(messages) == "<user>hi {{ 1 + 1 }}<end><assistant>"
    assert _template().render(messages, add_generation_prompt=False) == "<user>hi {{ 1 + 1 }}<end>"


def test_tokens_and_arguments_are_seen() -> None:
    text = _template("{{ bos_token }}{{ mode }}{{ eos_token }}").render([], arguments={"mode": "x"})
    assert text == "<s>x</s>"


def test_refusal_names_the_message() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    with pytest.raises(RequestError, match=r"messages\[1\].*tools are not known") as raised:
        _template().render(messages)
    assert raised.value.field == "messages[1]"


def test_a_long_conversation_refused_at_its_end_is_not_rendered_once_a_message() -> None:
    renderings: list[int] = []
    source = "{{ note(messages | length) }}" + TEMPLATE
    messages = [{"role": "user", "content": "a"}] * 999 + [{"role": "tool", "content": "b"}]
    with pytest.raises(RequestError, match=r"messages\[999\].*tools are not known"):
        _template(source).render(messages, arguments={"note": renderings.append})
    assert len(renderings) < 15


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_sandbox_lets_nothing_out(source: str) -> None:
    with pytest.raises(RequestError, match="chat template"):
        _template(source).render([{"role": "user", "content": "a"}])


def test_template_that_does_not_compile_is_a_fault_of_the_model() -> None:
    with pytest.raises(ModelLoadError, match="does not compile"):
        _template("{% for %}")
