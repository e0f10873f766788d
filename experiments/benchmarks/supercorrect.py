"""The preference step against trl's, and the rule judge's rate."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ritornello.common.models.tiny import tiny_causal_lm
from ritornello.common.training.preference import PreferenceSettings
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.supercorrect.answers import answers_equal

PAIRS, PROMPT, COMPLETION, VOCABULARY = 8, 192, 24, 2048


def benchmarks() -> Iterator[Benchmark]:
    tokenizer, pairs = _tokenizer(), _pairs()
    for name, target, options in (
        ("trl DPOTrainer, its defaults", 1.6, {}),
        (
            "trl DPOTrainer, reference precomputed, no recomputation",
            None,
            {"precompute_ref_log_probs": True, "gradient_checkpointing": False},
        ),
    ):
        yield Benchmark(
            f"DPO step, {PAIRS} pairs, prompt {PROMPT}, completion {COMPLETION}",
            ours=_our_step(tokenizer, pairs),
            peer=_trl_step(tokenizer, pairs, options),
            peer_name=name,
            target=target,
            agree=_same_loss,
            seconds=15,
        )
    answers = [(f"\\frac{{{n}}}{{7}}", f"{2 * n}/14") for n in range(200)]
    yield Benchmark(
        "rule judge, 200 pairs of fractions",
        ours=lambda: [answers_equal(a, b) for a, b in _fresh(answers)],
        peer=lambda: [_sympy_equal(a, b) for a, b in answers],
        peer_name="sympy: parse and simplify the difference",
    )


def _same_loss(mine: float, theirs: float) -> None:
    if abs(mine - theirs) > 1e-4:
        raise AssertionError(f"losses differ: {mine} and {theirs}")


def _model(seed: int = 0) -> Any:
    return tiny_causal_lm(
        width=128,
        hidden=384,
        layers=4,
        heads=4,
        vocabulary=VOCABULARY,
        seed=seed,
    )


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{index}": index for index in range(2, VOCABULARY)} | {"<pad>": 0, "<eos>": 1}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def _pairs() -> list[dict[str, str]]:
    generator = torch.Generator().manual_seed(0)

    def words(count: int) -> str:
        ids = torch.randint(2, VOCABULARY, (count,), generator=generator)
        return " ".join(f"w{index}" for index in ids.tolist())

    return [
        {
            "prompt": f"{words(PROMPT)} ",
            "chosen": f"{words(COMPLETION)} <eos>",
            "rejected": f"{words(COMPLETION)} <eos>",
        }
        for _ in range(PAIRS)
    ]


def _our_step(tokenizer: Any, pairs: list[dict[str, str]]) -> Callable[[], float]:
    from ritornello.common.training.preference_trainer import preference_trainer

    trainer = preference_trainer(
        _model(),
        tokenizer,
        pairs,
        PreferenceSettings(batch_size=PAIRS),
        output_dir=tempfile.gettempdir(),
        use_cpu=True,
    )
    return _step(trainer)


def _trl_step(
    tokenizer: Any, pairs: list[dict[str, str]], options: dict[str, bool]
) -> Callable[[], float]:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=PAIRS,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **options,
    )
    reference = None if options else _model()
    data = Dataset.from_list(pairs)
    return _step(
        DPOTrainer(_model(), reference, config, train_dataset=data, processing_class=tokenizer)
    )


def _step(trainer: Any) -> Callable[[], float]:
    """Loss and gradients of one batch by the trainer's own step; weights stay, so calls agree."""
    rows = [trainer.train_dataset[index] for index in range(PAIRS)]
    trainer.model.train()
    if trainer.args.gradient_checkpointing:
        trainer.model.gradient_checkpointing_enable()
    trainer.accelerator.gradient_accumulation_steps = 1
    trainer.current_gradient_accumulation_steps = 1

    def step() -> float:
        trainer.model.zero_grad()
        return trainer.training_step(trainer.model, trainer.data_collator(rows)).item()

    return step


def _fresh(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The same pairs, kept from the judge's own memory of earlier comparisons."""
    from ritornello.methods.supercorrect.answers import _equal

    _equal.cache_clear()
    yield from pairs


def _sympy_equal(a: str, b: str) -> bool:
    import sympy

    top, bottom = a.removeprefix("\\frac{").removesuffix("}").split("}{")
    first, second = (sympy.sympify(text) for text in (f"{top}/{bottom}", b))
    return bool(sympy.simplify(first - second) == 0)
