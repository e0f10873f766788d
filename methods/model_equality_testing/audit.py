"""Auditing an endpoint: does it serve the reference weights? (sec. 5)."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ritornello.common.chat import (
    AnswerStore,
    CachedClient,
    ChatClient,
    Completion,
    GenerationParams,
    Prompt,
    PromptLike,
    as_prompt,
    replicates,
)
from ritornello.methods.model_equality_testing.sample import (
    CompletionSample,
    encode_tokens,
    encode_unicode,
)
from ritornello.methods.model_equality_testing.statistics import Statistic
from ritornello.methods.model_equality_testing.two_sample import (
    TestResult,
    check_level,
    composite_test,
)

Tokenize = Callable[[str], Sequence[int]]
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class AuditSettings:
    """How completions are drawn and tested; the defaults are the paper's (sec. 5).

    Args:
        repeats: independent draws of both samples; the endpoint is flagged when at least half of
            them reject.
        alpha: level of each test, 0.01.
        max_tokens: length of a completion, 50 for continuations of encyclopedia text.
        temperature, top_p: of sampling; 1 and 1 sample from the model's own distribution.
        length: positions of a completion in characters (or tokens, with a tokenizer).
        statistic: what is compared.
        n_resamples: permutations of each test.
        stratified: permute within prompts only, which is exact where every prompt is asked equally
            often, as here; False is the published test.
        seed: of sampling and permutations.
    """

    repeats: int = 10
    alpha: float = 0.01
    max_tokens: int = 50
    temperature: float = 1.0
    top_p: float = 1.0
    length: int = 1000
    statistic: Statistic = field(default_factory=Statistic)
    n_resamples: int = 1000
    stratified: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_level(self.alpha)
        if self.repeats < 1 or self.length < 1:
            raise ValueError(
                f"repeats and length must be >= 1, got {self.repeats} and {self.length}"
            )
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be > 0 (greedy answers repeat themselves), got "
                f"{self.temperature}"
            )
        if self.n_resamples + 1 < 1 / self.alpha:
            raise ValueError(
                f"n_resamples={self.n_resamples} can never give p <= alpha={self.alpha}: "
                f"at least {round(1 / self.alpha) - 1} are needed"
            )

    def params(self, *, endpoint: bool) -> GenerationParams:
        """Decoding settings; both sides draw from different seeds, lest equal seeds on equal
        weights give equal samples instead of independent ones."""
        return GenerationParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=2 * self.seed + endpoint,
        )


@dataclass(frozen=True)
class CostEstimate:
    """What an audit asks of the endpoint, at the most.

    Attributes:
        requests: completions asked for.
        prompt_tokens: estimated at four characters a token.
        completion_tokens: upper bound.
        price: in the currency of the prices; None without them.
    """

    requests: int
    prompt_tokens: int
    completion_tokens: int
    price: float | None


@dataclass(frozen=True)
class AuditReport:
    """Outcome of an audit.

    Attributes:
        endpoint: the name it was given.
        model: identity of the served model as the client states it.
        references: identities of the acceptable models, by name.
        prompts, n_per_prompt, repeats: size of the audit.
        alpha: level of each test.
        rejection_rate: share of repeats in which every reference was rejected.
        flagged: whether that share is at least one half.
        p_values, statistics: per reference, one value a repeat.
        failed: requests that gave no completion, left out of the samples.
        prompt_tokens, completion_tokens: as the endpoint counted them.
        asked: requests that were not answered from the cache.
        price: of the counted tokens, cached ones included; None without prices.
    """

    endpoint: str
    model: str
    references: dict[str, str]
    prompts: int
    n_per_prompt: int
    repeats: int
    alpha: float
    rejection_rate: float
    flagged: bool
    p_values: dict[str, list[float]]
    statistics: dict[str, list[float]]
    failed: int
    prompt_tokens: int
    completion_tokens: int
    asked: int
    price: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def estimate_cost(
    prompts: Sequence[PromptLike],
    n_per_prompt: int,
    settings: AuditSettings | None = None,
    prices: tuple[float, float] | None = None,
) -> CostEstimate:
    """Requests, tokens and price of an audit before anything is sent.

    Args:
        prompts: what would be asked.
        n_per_prompt: completions of each prompt in each repeat.
        settings: repeats and lengths are read from it.
        prices: per million prompt tokens and per million completion tokens.
    """
    settings = settings or AuditSettings()
    each = n_per_prompt * settings.repeats
    sizes = [
        sum(len(m.text) for m in prompt.messages) + len(prompt.text or "") + len(prompt.prefill)
        for prompt in map(as_prompt, prompts)
    ]
    prompt_tokens = each * sum(-(-size // _CHARACTERS_PER_TOKEN) for size in sizes)
    completion_tokens = each * len(sizes) * settings.max_tokens
    price = _price(prompt_tokens, completion_tokens, prices)
    return CostEstimate(each * len(sizes), prompt_tokens, completion_tokens, price)


def audit_endpoint(
    client: ChatClient,
    reference_client: ChatClient | Mapping[str, ChatClient],
    prompts: Sequence[PromptLike],
    n_per_prompt: int = 10,
    *,
    settings: AuditSettings | None = None,
    name: str = "endpoint",
    cache: str | Path | None = None,
    tokenizer: Tokenize | None = None,
    prices: tuple[float, float] | None = None,
    max_price: float | None = None,
) -> AuditReport:
    """Samples the endpoint and the reference, and tests whether they are the same model.

    Args:
        client: the endpoint, for example an `OpenAIClient`.
        reference_client: the model it should serve; several (fp32 and fp16, say) form a composite
            null, which falls only if each of them does.
        prompts: distinct prompts; the paper takes 25 beginnings of articles.
        n_per_prompt: completions of each prompt in each repeat, at least 2.
        settings: see `AuditSettings`.
        name: of the endpoint, in the report and in the cache: two providers of one model need two.
        cache: folder of answers; what was answered once is not asked again.
        tokenizer: text to token ids; both sides are then compared in token space, which has more
            power than characters. It must be the same for both, and is.
        prices: per million prompt and completion tokens.
        max_price: refuse to start where the estimate exceeds it.

    Raises:
        ValueError: an argument out of range, or the estimate exceeds `max_price`.
        ErrorBudgetExceeded: too many requests failed; what was answered stays in the cache.
    """
    settings = settings or AuditSettings()
    asked = [as_prompt(prompt) for prompt in prompts]
    if not asked or len(set(asked)) < len(asked) or n_per_prompt < 2:
        raise ValueError(
            "prompts must be distinct and at least one, n_per_prompt >= 2; got "
            f"{len(asked)} prompts, {len(set(asked))} of them distinct, and {n_per_prompt}"
        )
    expected = estimate_cost(asked, n_per_prompt, settings, prices)
    if max_price is not None and (expected.price is None or expected.price > max_price):
        raise ValueError(
            f"the audit may cost {expected.price} (max_price={max_price}); give prices, or lower "
            "n_per_prompt, the settings' repeats or max_tokens"
        )
    references = (
        dict(reference_client) if isinstance(reference_client, Mapping)
        else {"reference": reference_client}
    )  # fmt: skip
    completions = _ask(client, asked, n_per_prompt, settings, name, cache, endpoint=True)
    drawn = {
        key: _ask(reference, asked, n_per_prompt, settings, f"reference-{key}", cache)
        for key, reference in references.items()
    }
    rejected, results = _tested(
        _samples(completions, n_per_prompt, settings, tokenizer),
        {key: _samples(of, n_per_prompt, settings, tokenizer) for key, of in drawn.items()},
        settings,
    )
    rate = sum(rejected) / len(rejected)
    everything = [c for of_prompt in completions for c in of_prompt]
    prompt_tokens = sum(c.usage.prompt_tokens for c in everything)
    completion_tokens = sum(c.usage.completion_tokens for c in everything)
    return AuditReport(
        endpoint=name,
        model=client.model_id,
        references={key: reference.model_id for key, reference in references.items()},
        prompts=len(asked),
        n_per_prompt=n_per_prompt,
        repeats=settings.repeats,
        alpha=settings.alpha,
        rejection_rate=rate,
        flagged=rate >= 0.5,
        p_values={key: [r.p_value for r in found] for key, found in results.items()},
        statistics={key: [r.statistic for r in found] for key, found in results.items()},
        failed=sum(not c.ok for c in everything),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        asked=sum(c.attempts > 0 for c in everything),
        price=_price(prompt_tokens, completion_tokens, prices),
    )


def _ask(
    client: ChatClient,
    prompts: Sequence[Prompt],
    n_per_prompt: int,
    settings: AuditSettings,
    name: str,
    cache: str | Path | None,
    *,
    endpoint: bool = False,
) -> list[list[Completion]]:
    """All repeats' completions of every prompt."""
    store, asker = None, client
    if cache is not None:
        # one file for each who answers: cache keys do not say where a server is
        digest = hashlib.sha256(f"{endpoint}\0{name}\0{client.model_id}".encode()).hexdigest()
        store = AnswerStore(Path(cache) / f"{digest[:16]}.sqlite")
        asker = CachedClient(client, store)
    each = n_per_prompt * settings.repeats
    wanted = [copy for prompt in prompts for copy in replicates(replace(prompt, sample=0), each)]
    try:
        answers = asker.generate(wanted, settings.params(endpoint=endpoint))
    finally:
        if store is not None:
            store.close()
    return [answers[start : start + each] for start in range(0, len(answers), each)]


def _samples(
    completions: list[list[Completion]],
    n_per_prompt: int,
    settings: AuditSettings,
    tokenizer: Tokenize | None,
) -> list[CompletionSample]:
    """One sample a repeat; failed requests are left out."""
    samples = []
    for repeat in range(settings.repeats):
        rows = slice(repeat * n_per_prompt, (repeat + 1) * n_per_prompt)
        pairs = [(i, c.text) for i, of in enumerate(completions) for c in of[rows] if c.ok]
        texts = [text for _, text in pairs]
        if tokenizer is None:
            codes = encode_unicode(texts, settings.length)
        else:
            codes = encode_tokens([tokenizer(text) for text in texts], settings.length)
        samples.append(CompletionSample([i for i, _ in pairs], codes, len(completions)))
    return samples


def _tested(
    served: Sequence[CompletionSample],
    nulls: Mapping[str, Sequence[CompletionSample]],
    settings: AuditSettings,
) -> tuple[list[bool], dict[str, list[TestResult]]]:
    """By repeat: whether every reference was rejected, and the single tests of each."""
    rejected: list[bool] = []
    results: dict[str, list[TestResult]] = {key: [] for key in nulls}
    for repeat, sample in enumerate(served):
        fell, single = composite_test(
            sample,
            {key: samples[repeat] for key, samples in nulls.items()},
            settings.alpha,
            statistic=settings.statistic,
            n_resamples=settings.n_resamples,
            stratified=settings.stratified,
            seed=settings.seed + repeat,
        )
        rejected.append(fell)
        for key, result in single.items():
            results[key].append(result)
    return rejected, results


def _price(
    prompt_tokens: int, completion_tokens: int, prices: tuple[float, float] | None
) -> float | None:
    if prices is None:
        return None
    return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6
