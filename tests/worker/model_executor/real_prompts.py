"""Twenty prompts for the real model: languages, chat template, code, lists, one very long."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """``is_chat`` prompts go through the model's chat template as one user message."""

    name: str
    text: str
    is_chat: bool


def _long_text() -> str:
    """A register of well over 2,000 tokens, then a question about it."""
    trades = ("baker", "weaver", "smith", "miller", "cooper", "tanner", "mason", "potter")
    towns = ("Arden", "Brook", "Calder", "Dunmore", "Elms", "Fenwick", "Glade")
    lines = [
        f"Entry {i}: a {trades[i % 8]} of {towns[i % 7]} paid {i * 3 % 17 + 1} coins in tax."
        for i in range(1, 121)
    ]
    return "Read this register.\n" + "\n".join(lines) + "\nWho paid tax in Entry 9?"


PROMPTS = (
    Prompt("capital", "What is the capital of France?", is_chat=True),
    Prompt("explain", "Explain in two sentences why the sky is blue.", is_chat=True),
    Prompt("french", "Écris une phrase sur la mer en été.", is_chat=True),
    Prompt("german", "Nenne drei Tiere, die im Wald leben.", is_chat=True),
    Prompt("spanish", "¿Cuál es la montaña más alta del mundo?", is_chat=True),
    Prompt("italian", "La città di Roma è famosa per", is_chat=False),
    Prompt("chinese", "你好，请介绍一下你自己。", is_chat=True),  # noqa: RUF001
    Prompt("japanese", "日本の首都は", is_chat=False),
    Prompt("russian", "Расскажи о Москве.", is_chat=True),  # noqa: RUF001
    Prompt("greek", "Η Ελλάδα είναι", is_chat=False),  # noqa: RUF001
    Prompt("python", "def fibonacci(n):\n    ", is_chat=False),
    Prompt("javascript", "// Return the sum of an array\nfunction sum(values) {", is_chat=False),
    Prompt("sql", "SELECT name, COUNT(*) FROM orders", is_chat=False),
    Prompt("json", '{"name": "Ada", "born": 1815, "known_for": [', is_chat=False),
    Prompt("story", "Once upon a time, in a small village by the sea,", is_chat=False),
    Prompt("arithmetic", "What is 12 plus 30? Answer with a number.", is_chat=True),
    Prompt("list", "Write a shopping list for a vegetable soup.", is_chat=True),
    Prompt("emoji", "Reply with something cheerful 🙂🎉", is_chat=True),
    Prompt("one token", "The", is_chat=False),
    Prompt("long", _long_text(), is_chat=True),
)
