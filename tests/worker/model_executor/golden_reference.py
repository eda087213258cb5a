"""Transformers' greedy answers for the real model, kept in a golden file.

Transformers takes long to read a GGUF, so its answers are committed together with the gap between
the two best logits at every step; ``pytest --update-golden`` makes them anew.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.worker.model_executor.real_prompts import PROMPTS, Prompt
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from mizzen_worker.vocabulary.model_path import find_gguf

GOLDEN = Path(__file__).with_name("golden") / "smollm2-135m-instruct.json"
NUM_NEW_TOKENS = 24


@dataclass(frozen=True)
class Golden:
    """One prompt: its ids, transformers' continuation, and each step's gap of the top two."""

    name: str
    prompt: list[int]
    output: list[int]
    gaps: list[float]


def load_transformers(folder: Path) -> PreTrainedModel:
    """The GGUF dequantised to float32."""
    gguf_path = find_gguf(folder)
    assert gguf_path is not None
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_path.name, dtype=torch.float32
    )
    return model.eval()


def prompt_ids(folder: Path) -> dict[str, list[int]]:
    """Ids of every prompt, through transformers' reading of the GGUF's tokenizer."""
    gguf_path = find_gguf(folder)
    assert gguf_path is not None
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_path.name)

    def encode(prompt: Prompt) -> list[int]:
        if not prompt.is_chat:
            return tokenizer(prompt.text)["input_ids"]
        messages = [{"role": "user", "content": prompt.text}]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )

    return {prompt.name: list(encode(prompt)) for prompt in PROMPTS}


def reference_continuation(
    model: PreTrainedModel, prompt: list[int], count: int
) -> tuple[list[int], list[float]]:
    """Greedy ids (EOS included and gone past) and the gap of the two best logits of each."""
    ids, gaps, cache = [], [], DynamicCache(config=model.config)
    step = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(count):
            result = model(step, cache=cache, logits_to_keep=1)
            best = result.logits[0, -1].float().topk(2)
            ids.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            step = torch.tensor([[ids[-1]]])
    return ids, gaps


def write_golden(folder: Path) -> None:
    """Compute and write the golden file."""
    model = load_transformers(folder)
    entries = []
    for name, ids in prompt_ids(folder).items():
        output, gaps = reference_continuation(model, ids, NUM_NEW_TOKENS)
        rounded = [round(gap, 4) for gap in gaps]
        entries.append({"name": name, "prompt": ids, "output": output, "gaps": rounded})
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_golden() -> list[Golden]:
    return [Golden(**entry) for entry in json.loads(GOLDEN.read_text(encoding="utf-8"))]
