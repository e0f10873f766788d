"""u-muP's operators and training step against plain torch and against the authors' library."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ritornello.common.optional import require
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.umup import SP, AdamW, DecoderConfig, DecoderLM, UMuP
from ritornello.methods.umup import functional as U


def benchmarks() -> Iterator[Benchmark]:
    """Targets: at most 1.05 times plain torch's time; a step at most 1/1.1 of the library's."""
    uu = require("unit_scaling", extra="bench")
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    for rows, inputs, outputs in ((1024, 256, 512), (4096, 128, 128)):
        x = normal(rows, inputs).requires_grad_()
        w = normal(outputs, inputs).requires_grad_()
        upstream = normal(rows, outputs)

        def run(linear: Callable, x=x, w=w, upstream=upstream) -> Any:
            return torch.autograd.grad(linear(x, w), (x, w), upstream)

        def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return uu.functional.linear(x, w, None)

        def scaled_alike(ours: Any, theirs: Any) -> None:
            for our, their in zip(ours, theirs, strict=True):
                cosine = F.cosine_similarity(our.flatten(), their.flatten(), dim=0)
                torch.testing.assert_close(cosine, torch.ones(()), rtol=1e-4, atol=1e-4)

        name = f"linear {rows}x{inputs}x{outputs}, forward and backward"
        yield Benchmark(
            name, lambda run=run: run(U.linear), lambda run=run: run(F.linear), "F.linear",
            target=1 / 1.05, agree=scaled_alike,
        )  # fmt: skip
        yield Benchmark(
            name, lambda run=run: run(U.linear),
            lambda run=run: run(theirs),
            "unit-scaling", agree=torch.testing.assert_close,
        )  # fmt: skip
    yield from _steps(uu, width=256, batch=16, tokens=64)


def _steps(uu: Any, *, width: int, batch: int, tokens: int) -> Iterator[Benchmark]:
    """One AdamW step of a two-layer decoder, without positions as the library's has none."""
    heads, vocabulary = width // 16, 256
    config = DecoderConfig(vocabulary, width, 2, heads, rope_theta=None)
    ids = torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(0))

    def step(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def decoder(scheme: Any, optimizer: Callable) -> Callable[[], None]:
        model = DecoderLM(config, scheme)
        built = optimizer(model)

        def loss() -> torch.Tensor:
            return scheme.loss(model(ids)[:, :-1], ids[:, 1:])

        return lambda: step(loss, built)

    ours = decoder(UMuP(), lambda model: AdamW(model, 2**-3, fused=True))
    plain = decoder(
        SP(), lambda model: torch.optim.AdamW(SP().param_groups(model, 2**-10), fused=True)
    )
    library = uu.TransformerDecoder(width, vocabulary, 2, heads, 0.0)
    optimizer = uu.optim.AdamW(library.parameters(), lr=2**-3, fused=True)

    def peer() -> None:
        step(lambda: library.loss(ids), optimizer)

    name = f"training step, width {width}, {batch}x{tokens} tokens"
    yield Benchmark(name, ours, plain, "standard parametrisation", target=1 / 1.05, seconds=20)
    yield Benchmark(name, ours, peer, "unit-scaling", target=1.1, seconds=20)
