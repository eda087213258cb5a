"""The engines that bench_offline compares, behind one protocol."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat

PAGE_SIZE = 16


@dataclass(frozen=True)
class Workload:
    """``new_tokens`` 0 means that the prefill is what is measured."""

    name: str
    num_streams: int
    prompt: int
    new_tokens: int

    def prompts(self) -> np.ndarray:
        """[streams, prompt] token ids, the same for every engine that takes ids."""
        return np.random.default_rng(6).integers(1000, 20000, (self.num_streams, self.prompt))


class Peer(Protocol):
    """One engine."""

    name: str
    weight_bytes: int
    """Read once per decode step."""

    def tokens_per_s(self, workload: Workload) -> float:
        """New tokens per second over all streams (prompt tokens per second for a prefill)."""
        ...


class _Ours:
    """The runner, driven as the scheduler does, without its planning."""

    def __init__(self, name: str, options: RunnerOptions, weight_bytes: int) -> None:
        self.name = name
        self.weight_bytes = weight_bytes
        self._runner = load_runner(options, lambda done, total: None).runner

    def tokens_per_s(self, workload: Workload) -> float:
        prompts = workload.prompts().astype(np.int32)
        started = time.perf_counter()
        self._launch(1, self._extend_rows(prompts), *self._entering(workload))
        if workload.new_tokens == 0:
            return prompts.size / (time.perf_counter() - started)
        started = time.perf_counter()
        for index in range(workload.new_tokens):
            self._launch(2 + index, self._decode_rows(workload, workload.prompt + index), (), ())
        seconds = time.perf_counter() - started
        return workload.new_tokens * workload.num_streams / seconds

    def _launch(
        self,
        step: int,
        rows: list[ExtendRow] | DecodeRows,
        inits: tuple[SlotInit, ...],
        writes: tuple[PageWrite, ...],
    ) -> None:
        nothing = DecodeRows(slots=np.empty(0, np.int32), starts=np.empty(0, np.int32))
        batch = ScheduleBatch(
            step=step,
            extends=() if isinstance(rows, DecodeRows) else tuple(rows),
            decodes=rows if isinstance(rows, DecodeRows) else nothing,
            slot_inits=inits,
            page_writes=writes,
        )
        self._runner.launch(batch).settle()

    def _entering(self, workload: Workload) -> tuple[tuple[SlotInit, ...], tuple[PageWrite, ...]]:
        sampling = SamplingParams(max_new_tokens=1 << 20, seed=1, temperature=0.0)
        num_pages = (workload.prompt + workload.new_tokens) // PAGE_SIZE + 1
        inits, writes = [], []
        for slot in range(1, workload.num_streams + 1):
            inits.append(
                SlotInit(
                    slot=slot,
                    sampling=sampling,
                    num_prompt_tokens=workload.prompt,
                    num_generated_tokens=0,
                    eos_token_ids=(),
                    max_tokens=1 << 30,
                )
            )
            pages = np.arange(num_pages, dtype=np.int32) + 1 + (slot - 1) * num_pages
            writes.append(PageWrite(slot=slot, first_page=0, pages=pages))
        return tuple(inits), tuple(writes)

    def _extend_rows(self, prompts: np.ndarray) -> list[ExtendRow]:
        return [
            ExtendRow(
                request_id=str(slot),
                slot=slot,
                start=0,
                num_new=len(ids),
                token_ids=ids,
                is_sampled=True,
            )
            for slot, ids in enumerate(prompts, 1)
        ]

    def _decode_rows(self, workload: Workload, position: int) -> DecodeRows:
        slots = np.arange(1, workload.num_streams + 1, dtype=np.int32)
        return DecodeRows(slots=slots, starts=np.full_like(slots, position))


def _options(model: Path, threads: int, weight_format: WeightFormat) -> RunnerOptions:
    return RunnerOptions(
        model=model,
        kv_tokens=8192,
        page_size=PAGE_SIZE,
        max_slots=8,
        num_threads=threads,
        weight_format=weight_format,
    )


class OursNative(_Ours):
    """As served: weights packed as in the file, native kernels."""

    def __init__(self, model: Path, threads: int) -> None:
        size_bytes = next(model.glob("*.gguf")).stat().st_size
        super().__init__("mizzen", _options(model, threads, WeightFormat.AUTO), size_bytes)

    def tokens_per_s(self, workload: Workload) -> float:
        torch.set_num_threads(1)  # as in a rank's process; the peers set their own
        return super().tokens_per_s(workload)


class OursDense(_Ours):
    """Without the native extension."""

    def __init__(self, model: Path, threads: int) -> None:
        options = _options(model, threads, WeightFormat.DENSE)
        super().__init__("mizzen plain torch", options, 0)
        self._threads = threads

    def tokens_per_s(self, workload: Workload) -> float:
        torch.set_num_threads(self._threads)
        return super().tokens_per_s(workload)


class Transformers:
    """Its own generation loop's inner step: forward with its KV cache, argmax."""

    def __init__(self, gguf_path: Path, dtype: torch.dtype, threads: int) -> None:
        self.name = f"transformers {str(dtype).removeprefix('torch.')}"
        self._threads = threads
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            gguf_path.parent, gguf_file=gguf_path.name, dtype=dtype
        ).eval()
        self.weight_bytes = sum(p.nbytes for p in self._model.parameters())

    @torch.inference_mode()
    def tokens_per_s(self, workload: Workload) -> float:
        torch.set_num_threads(self._threads)  # ours leaves torch one thread
        ids = torch.from_numpy(workload.prompts())
        started = time.perf_counter()
        cache = DynamicCache(config=self._model.config)
        result = self._model(ids, cache=cache, logits_to_keep=1)
        if workload.new_tokens == 0:
            return ids.numel() / (time.perf_counter() - started)
        started = time.perf_counter()
        for _ in range(workload.new_tokens):
            tokens = result.logits[:, -1].argmax(-1, keepdim=True)
            result = self._model(tokens, cache=cache, logits_to_keep=1)
        seconds = time.perf_counter() - started
        return workload.new_tokens * workload.num_streams / seconds


class LlamaCpp:
    """llama.cpp's own benchmarks (they make up their token ids)."""

    name = "llama.cpp"

    def __init__(self, folder: Path, gguf_path: Path, threads: int) -> None:
        self.weight_bytes = gguf_path.stat().st_size
        self._folder = folder
        self._common = ["-m", str(gguf_path), "-t", str(threads)]

    def tokens_per_s(self, workload: Workload) -> float:
        if workload.num_streams == 1:
            return self._bench(workload)
        return self._batched_bench(workload)

    def _bench(self, workload: Workload) -> float:
        counts = ["-p", str(workload.prompt), "-n", "0"]
        if workload.new_tokens:
            counts = ["-p", "0", "-n", str(workload.new_tokens)]
        output = self._run("llama-bench", *self._common, *counts, "-r", "1", "-o", "json")
        return float(json.loads(output)[0]["avg_ts"])

    def _batched_bench(self, workload: Workload) -> float:
        sizes = {
            "-npp": workload.prompt,
            "-ntg": workload.new_tokens,
            "-npl": workload.num_streams,
            "-c": workload.num_streams * (workload.prompt + workload.new_tokens) + 64,
        }
        flags = [text for key, value in sizes.items() for text in (key, str(value))]
        output = self._run("llama-batched-bench", *self._common, *flags, "--output-format", "jsonl")
        line = next(line for line in output.splitlines() if line.startswith("{"))
        return float(json.loads(line)["speed_tg"])

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._folder / program), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
