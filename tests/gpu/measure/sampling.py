"""Choice of tokens: checks at real vocabularies, then times and variants.

Predicted, us, float32 logits (twice the bytes of the prototypes' bfloat16), vocabulary 151,936, for
1 / 32 / 256 rows: statistics alone 1.8 / 6.5 / 39; greedy or plain 4.5 / 9.5 / 44; top-k 50 with
top-p 0.95: 15 / 20 / 56; top-p 0.9 where 64 blocks hold it: the same; where thousands of tokens are
kept: 130 / 150 / 600. Best of the head's blocks: 1.8 / 1.9 / 2.2. 128,256: 15 % less where the
logits' bytes count. Logprobs with 20 alternatives: 12 / 17 / 52.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
from tests.benchmark_models import LLAMA8B, QWEN06B
from tests.gpu.measure.harness import Readings, capture, time_work

from mizzen_worker.kernels.gpu import sampling as kernels
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.sampling import (
    DrawParameters,
    block_statistics,
    choose_best,
    draw,
)
from mizzen_worker.kernels.gpu.scoring import score_rows
from mizzen_worker.sampler.adjustments import penalise_on_gpu
from mizzen_worker.sampler.counter_random import uniform
from mizzen_worker.sampler.ranking import best_tokens
from mizzen_worker.sampler.sampling_batch import Penalties

VOCABULARIES = (QWEN06B.vocab_size, LLAMA8B.vocab_size)
NUM_DRAWS = 16_384
MAX_SECONDS = 75
TOLERANCE = 4e-6
"""Of a uniform number, as a share of the kept weight: float32 sums of a whole vocabulary."""

Filters = dict[str, float]
GREEDY: Filters = {"temperature": 0.0}
PLAIN_ROWS: Filters = {"temperature": 0.8}
USUAL: Filters = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
KINDS: tuple[Filters, ...] = (
    GREEDY,
    PLAIN_ROWS,
    USUAL,
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 1000, "top_p": 0.99},
    {"temperature": 1.0, "top_k": 5000},
    {"temperature": 3.0, "top_p": 0.999},
)


def parameters(rows: list[Filters], position: int = 100) -> DrawParameters:
    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        values = [row.get(name, default) for row in rows]
        return torch.tensor(values, dtype=dtype, device="cuda")

    return DrawParameters(
        temperatures=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seeds=torch.arange(len(rows), device="cuda") * 7919 + 1,
        positions=torch.full((len(rows),), position, device="cuda"),
    )


def kept_weights(logits: torch.Tensor, row: Filters) -> torch.Tensor:
    """[vocab] float64: the definition, by a stable sort."""
    wide = logits.double()
    temperature = float(torch.tensor(row["temperature"]))
    weights = ((wide - wide.max()) / temperature).exp()
    ordered, order = logits.sort(descending=True, stable=True)
    ranked = weights[order]
    if row.get("top_k"):
        ranked[int(row["top_k"]) :] = 0
    before = ranked.cumsum(0) - ranked
    top_p = float(torch.tensor(row.get("top_p", 1.0)))
    if top_p < 1:
        ranked[1:][before[1:] >= top_p * ranked.sum()] = 0
    ranked[ranked < row.get("min_p", 0.0)] = 0
    assert ordered[0] == logits.max()
    return torch.zeros_like(weights).scatter_(0, order, ranked)


def check_rows(readings: Readings, vocab_size: int, spread: float, *, has_ties: bool) -> None:
    """Every token's own share of [0, 1) holds the row's number, up to the rounding of sums."""
    rows = [KINDS[i % len(KINDS)] for i in range(60)]
    logits = torch.randn(len(rows), vocab_size, device="cuda") * spread
    if has_ties:
        logits = logits.bfloat16().float()
    given = parameters(rows)
    tokens, is_valid = draw(logits, given, dependent())
    assert bool(is_valid.all())
    shares = uniform(given.seeds.cpu(), given.positions.cpu()).tolist()
    worst, outside = 0.0, 0
    for index, row in enumerate(rows):
        token = int(tokens[index])
        if row is GREEDY:
            best = (logits[index] == logits[index].max()).nonzero()[0]
            assert token == int(best), (index, token)
            continue
        weights = kept_weights(logits[index], row)
        ends = weights.cumsum(0) / weights.sum()
        start = float(ends[token] - weights[token] / weights.sum())
        distance = max(start - shares[index], shares[index] - float(ends[token]), 0.0)
        worst = max(worst, distance)
        outside += distance > TOLERANCE or float(weights[token]) == 0
    readings.add(
        f"check {vocab_size} spread {spread} ties {has_ties}", worst=worst, outside=outside
    )
    # A cut of top-p within rounding of a token's end may keep one token more or less.
    assert outside <= 1, f"{outside} of {len(rows)} tokens are not those of the definition"


def check_distribution(readings: Readings, vocab_size: int) -> None:
    logits = (torch.randn(vocab_size, device="cuda") * 3).expand(256, -1).contiguous()
    for row in KINDS[1:7]:
        given = parameters([row] * 256)
        drawn = torch.cat(
            [
                draw(logits, replace(given, positions=given.positions + step), dependent())[0]
                for step in range(NUM_DRAWS // 256)
            ]
        )
        weights = kept_weights(logits[0], row)
        expected = weights / weights.sum() * NUM_DRAWS
        counts = torch.bincount(drawn, minlength=vocab_size).double()
        assert counts[expected == 0].sum() == 0
        top = expected.topk(31).indices
        top = top[expected[top] > 5]
        z = (counts[top] - expected[top]) / (expected[top] * (1 - expected[top] / NUM_DRAWS)).sqrt()
        chi_square = ((counts[top] - expected[top]) ** 2 / expected[top]).sum()
        facts = {"tokens": len(top), "chi_square": round(float(chi_square), 1)}
        worst = round(float(z.abs().max()), 2) if len(top) > 1 else 0.0
        readings.add(f"distribution {row}", worst_z=worst, **facts)
        assert worst < 4.5, row


def check_company(vocab_size: int) -> None:
    """Alone, among others, eager and captured: the same tokens, to the last bit."""
    rows = [KINDS[i % len(KINDS)] for i in range(256)]
    logits = torch.randn(len(rows), vocab_size, device="cuda") * 2
    given = parameters(rows)
    together, _ = draw(logits, given, dependent())
    plainly, _ = draw(logits, given, PLAIN)
    assert torch.equal(together, plainly)
    for index in range(0, 256, 23):
        taken = (tensor[index : index + 1] for tensor in given.tensors())
        one = DrawParameters(**dict(zip(kernels._PARAMETERS, taken, strict=True)))
        alone, _ = draw(logits[index : index + 1], one, dependent())
        assert alone.item() == together[index].item(), index
    results: list[torch.Tensor] = []
    graph = capture(lambda: results.append(draw(logits, given, dependent())[0]))
    results[-1].fill_(-1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(results[-1], together)
    logits.copy_(logits.flip(0))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(results[-1], draw(logits, given, PLAIN)[0])


def check_scores(vocab_size: int) -> None:
    logits = (torch.randn(33, vocab_size, device="cuda") * 4).bfloat16().float()
    targets = torch.arange(33, device="cuda") * 1001
    for num_best in (0, 1, 20, 128):
        logprobs, ids, best = score_rows(logits, targets, num_best, dependent())
        expected = logits.double().log_softmax(-1)
        wanted = expected.gather(1, targets[:, None])[:, 0]
        assert float((logprobs - wanted).abs().max()) < 1e-5
        if num_best:
            _, order = best_tokens(logits.cpu(), num_best)
            assert torch.equal(ids.long().cpu(), order), num_best
            wanted = expected.gather(1, ids.long())
            assert float((best - wanted).abs().max()) < 1e-5


def penalties_of(num_rows: int, vocab_size: int) -> Penalties:
    tallies = torch.zeros(num_rows, vocab_size, dtype=torch.int32, device="cuda")
    tallies[:, ::97] = 3
    rows = torch.arange(num_rows, device="cuda")
    one = torch.ones(num_rows, device="cuda")
    return Penalties(
        rows=rows,
        tally_rows=rows,
        tallies=tallies,
        repetition=one * 1.1,
        frequency=one * 0.1,
        presence=one * 0.2,
    )


def time_kinds(readings: Readings, vocab_size: int, num_rows: int) -> None:
    copies = 8 if num_rows < 256 else 3
    by_spread = {
        spread: [
            torch.randn(num_rows, vocab_size, device="cuda").mul_(spread) for _ in range(copies)
        ]
        for spread in (1.0, 3.0)
    }
    num_bytes = num_rows * vocab_size * 4

    def chain(name: str, work: Callable[[torch.Tensor], object], spread: float = 3.0) -> None:
        tensors = by_spread[spread]
        us = time_work(lambda: [work(logits) for logits in tensors]) / copies
        readings.add(f"{vocab_size} x {num_rows} {name}", us, num_bytes=num_bytes)

    for name, row, spread in (
        ("greedy", GREEDY, 3.0),
        ("plain", PLAIN_ROWS, 3.0),
        ("top-k 50, top-p 0.95", USUAL, 3.0),
        ("top-p 0.9, few tokens", {"temperature": 0.6, "top_p": 0.9}, 3.0),
        ("top-p 0.9, many tokens", {"temperature": 1.0, "top_p": 0.9}, 1.0),
        ("min-p 0.05", {"temperature": 1.0, "min_p": 0.05}, 3.0),
        ("top-k 1000", {"temperature": 1.0, "top_k": 1000}, 3.0),
    ):
        given = parameters([row] * num_rows)
        chain(name, lambda logits, given=given: draw(logits, given, dependent()), spread)
    given = parameters([USUAL] * num_rows)
    chain("statistics", lambda logits: block_statistics(logits, given, dependent()))
    values, ids = by_spread[3.0][0].view(num_rows, -1, 64).max(-1)
    values, ids = values.contiguous(), ids.int().contiguous()
    chain("best of the head's blocks", lambda _: choose_best(values, ids, dependent()))
    targets = torch.zeros(num_rows, dtype=torch.int64, device="cuda")
    for num_best in (0, 20):
        name = f"scores, {num_best} best"
        chain(name, lambda logits, k=num_best: score_rows(logits, targets, k, dependent()))
    penalties = penalties_of(num_rows, vocab_size)
    chain("penalties", lambda logits: penalise_on_gpu(logits, penalties))
    if num_rows < 256:
        chain("torch.argmax", lambda logits: logits.argmax(-1))


def time_variants(readings: Readings, vocab_size: int, num_rows: int) -> None:
    """Other tiles of both kernels."""
    logits = [torch.randn(num_rows, vocab_size, device="cuda") * 3 for _ in range(3)]
    given = parameters([USUAL] * num_rows)
    num_blocks = triton.cdiv(vocab_size, 128)
    tokens, is_valid = kernels._outputs(num_rows, logits[0].device)
    maxima, sums = block_statistics(logits[0], given)
    for group, num_warps in ((8, 2), (8, 4), (16, 4), (16, 8), (32, 4), (32, 8), (64, 8)):

        def note(tensor: torch.Tensor, group: int = group, num_warps: int = num_warps) -> None:
            kernels._block_statistics_kernel[(triton.cdiv(num_blocks, group), num_rows)](
                *(tensor, given.temperatures, given.top_k, maxima, sums),
                *(vocab_size, tensor.stride(0), num_blocks),
                GROUP=group,
                HAS_TEMPERATURES=True,
                num_warps=num_warps,
                **dependent(),
            )

        us = time_work(lambda: [note(tensor) for tensor in logits]) / len(logits)
        name = f"{vocab_size} x {num_rows} statistics, {group} blocks, {num_warps} warps"
        readings.add(name, us, num_bytes=num_rows * vocab_size * 4)
    maxima, sums = block_statistics(logits[0], given)
    listed = torch.empty_like(maxima, dtype=torch.int32)
    flat = torch.randn(num_rows, vocab_size, device="cuda")
    open_rows = parameters([{"temperature": 1.0, "top_p": 0.9}] * num_rows)
    for name, tensor, rows in (("few", logits[0], given), ("many", flat, open_rows)):
        for num_warps, stages, limit in (
            *((4, 1, None), (8, 1, None), (16, 1, None)),
            *((8, 2, 128), (8, 3, None), (16, 2, None), (16, 3, None)),
        ):

            def choose(
                num_warps: int = num_warps,
                stages: int = stages,
                limit: int | None = limit,
                tensor: torch.Tensor = tensor,
                rows: DrawParameters = rows,
            ) -> None:
                options = {} if limit is None else {"maxnreg": limit}
                statistics = block_statistics(tensor, rows, dependent())
                kernels._choice_kernel[(num_rows,)](
                    *(tensor, *statistics, listed, *rows.tensors(), tokens, is_valid),
                    *(vocab_size, tensor.stride(0), num_blocks),
                    N=triton.next_power_of_2(num_blocks),
                    STAGES=stages,
                    num_warps=num_warps,
                    **options,
                    **dependent(),
                )

            us = time_work(lambda: [choose() for _ in range(4)]) / 4
            facts = {"warps": num_warps, "stages": stages, "maxnreg": limit}
            readings.add(
                f"{vocab_size} x {num_rows} statistics and choice, {name} kept", us, **facts
            )


def measure(readings: Readings) -> None:
    torch.manual_seed(5)
    for vocab_size in VOCABULARIES:
        for spread, has_ties in ((3.0, False), (1.0, False), (2.0, True)):
            check_rows(readings, vocab_size, spread, has_ties=has_ties)
        check_company(vocab_size)
        check_scores(vocab_size)
    check_distribution(readings, VOCABULARIES[0])
    for vocab_size in VOCABULARIES:
        for num_rows in (1, 32, 256):
            time_kinds(readings, vocab_size, num_rows)
    for num_rows in (1, 256, 32):
        if readings.seconds() < MAX_SECONDS:
            time_variants(readings, VOCABULARIES[0], num_rows)
