"""The real model behind the real command: an answer that is right, through the official client."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.worker.launched import Launched, free_port
from transformers import AutoTokenizer

from mizzen_worker.detokenizer.incremental import TextDecoder
from mizzen_worker.tokenizer.chat_template import ChatTemplate
from mizzen_worker.vocabulary.load import load_vocabulary
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12345.67, isn't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voilà l'été à Nîmes : où êtes-vous ?",
    "Съешь же ещё этих мягких французских булок.",
    "敏捷的棕色狐狸跳过了懒狗。こんにちは世界",
    "مرحبا بالعالم — שלום עולם",
    "🙂👩‍👩‍👧‍👦 flags 🇩🇪 and a\tb\n\n\n  indented",
    "def f(x: int) -> str:\n    return f'{x:>10}'  # 0xFF\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "    \n \n\t",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Link the model into an own folder: what is made of it lands there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mizzen" / "models"
    found = sorted(cache.glob(f"*/{NAME}"))
    if not found:
        pytest.skip(f"missing: {NAME} below {cache} (make setup fetches it)")
    link = tmp_path_factory.mktemp("real") / NAME
    link.symlink_to(found[0])
    return link


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--served-model-name", "smollm2"),
        log=tmp_path_factory.mktemp("log") / "log",
        admin_port=free_port(),
    ) as launched:
        launched.until_ready()
        yield f"http://127.0.0.1:{port}/v1"


def test_capital_of_france(served: str) -> None:
    with openai.OpenAI(base_url=served, api_key="none") as client:
        answer = client.chat.completions.create(
            model="smollm2", messages=QUESTION, temperature=0, max_tokens=30
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason == "stop"
        chunks = client.chat.completions.create(
            model="smollm2", messages=QUESTION, temperature=0, max_tokens=30, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == answer.choices[0].message.content


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """Read the same GGUF with transformers."""
    return AutoTokenizer.from_pretrained(model.parent, gguf_file=NAME)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_tokens_equal_the_reference_tokenizer(model: Path, reference: Any, text: str) -> None:
    vocabulary = load_vocabulary(model)
    ids = vocabulary.tokenizer.encode(text).ids
    assert ids == reference.encode(text)
    decoder = TextDecoder(token_bytes_of(vocabulary.tokenizer.to_str()), skip_special_tokens=False)
    assert "".join(decoder.push([token]) for token in ids) + decoder.flush() == text


def test_chat_template_equals_the_reference(model: Path, reference: Any) -> None:
    vocabulary = load_vocabulary(model)
    template = ChatTemplate(
        vocabulary.chat_template or "",
        bos_token=vocabulary.bos_token,
        eos_token=vocabulary.eos_token,
    )
    messages = [*QUESTION, {"role": "assistant", "content": "Paris."}, *QUESTION]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert template.render(messages) == expected
