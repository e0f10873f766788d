"""`python -m ritornello.methods.model_equality_testing test a.jsonl b.jsonl`, or `... audit`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ritornello.common.chat import ChatError, Message, OpenAIClient, TransformersClient
from ritornello.common.errors import UserError
from ritornello.methods.model_equality_testing.audit import (
    AuditSettings,
    audit_endpoint,
    estimate_cost,
)
from ritornello.methods.model_equality_testing.records import read_samples
from ritornello.methods.model_equality_testing.statistics import KERNELS, Statistic
from ritornello.methods.model_equality_testing.two_sample import check_level, two_sample_test


def main(arguments: list[str] | None = None) -> int:
    """Runs a subcommand; 0 equal, 3 different, 2 for bad input or an endpoint that refuses."""
    options = _parser().parse_args(arguments)
    try:
        return _test(options) if options.command == "test" else _audit(options)
    except (ValueError, ChatError) as error:
        print(f"model_equality_testing: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ritornello.methods.model_equality_testing")
    commands = parser.add_subparsers(dest="command", required=True)
    test = commands.add_parser("test", help="two files of {prompt_id, completion} lines")
    test.add_argument("first", type=Path)
    test.add_argument("second", type=Path)
    test.add_argument("--stratified", action="store_true", help="permute within prompts only")
    test.add_argument("--alpha", type=float, default=0.05)
    audit = commands.add_parser("audit", help="an OpenAI-compatible endpoint against a reference")
    audit.add_argument("--base-url", required=True)
    audit.add_argument("--model", required=True)
    audit.add_argument("--api-key-env", default="OPENAI_API_KEY", help="variable with the key")
    audit.add_argument("--prompts", type=Path, required=True, help="text file, a prompt a line")
    audit.add_argument(
        "--reference",
        action="append",
        required=True,
        help="hf:<id or folder> or smollm2; several: a composite null",
    )
    audit.add_argument("--n", type=int, default=10, help="completions a prompt and repeat")
    audit.add_argument("--repeats", type=int, default=10)
    audit.add_argument("--max-tokens", type=int, default=50)
    audit.add_argument("--alpha", type=float, default=0.01)
    audit.add_argument("--requests-per-minute", type=float)
    audit.add_argument("--cache", type=Path, help="folder of answers, to go on after a stop")
    audit.add_argument(
        "--prices",
        type=float,
        nargs=2,
        metavar=("IN", "OUT"),
        help="per million prompt and completion tokens",
    )
    audit.add_argument("--max-price", type=float)
    audit.add_argument("--estimate", action="store_true", help="say what it costs and ask nothing")
    for command in (test, audit):
        command.add_argument("--kernel", choices=list(KERNELS), default="hamming")
        command.add_argument("--permutations", type=int, default=1000)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--length", type=int, help="characters compared (at most 1000)")
    return parser


def _test(options: argparse.Namespace) -> int:
    check_level(options.alpha)
    first, second = read_samples([options.first, options.second], options.length)
    result = two_sample_test(
        first,
        second,
        KERNELS[options.kernel],
        n_resamples=options.permutations,
        seed=options.seed,
        stratified=options.stratified,
    )
    different = result.rejects(options.alpha)
    outcome = {"statistic": result.statistic, "p_value": result.p_value, "different": different}
    print(json.dumps(outcome | {"alpha": options.alpha, "n": result.n}, indent=1))
    return 3 if different else 0


def _audit(options: argparse.Namespace) -> int:
    try:
        lines = options.prompts.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"prompts: {error}") from error
    prompts = [[Message.user(line)] for line in lines if line.strip()]
    settings = AuditSettings(
        repeats=options.repeats,
        alpha=options.alpha,
        max_tokens=options.max_tokens,
        length=options.length or 1000,
        statistic=Statistic(KERNELS[options.kernel]),
        n_resamples=options.permutations,
        seed=options.seed,
    )
    prices = None if options.prices is None else tuple(options.prices)
    if options.estimate:
        cost = estimate_cost(prompts, options.n, settings, prices)
        print(json.dumps(cost.__dict__, indent=1))
        return 0
    endpoint = OpenAIClient(
        options.base_url,
        options.model,
        api_key_env=options.api_key_env,
        requests_per_minute=options.requests_per_minute,
    )
    report = audit_endpoint(
        endpoint,
        {name: _reference(name) for name in options.reference},
        prompts,
        options.n,
        settings=settings,
        name=f"{options.base_url} {options.model}",
        cache=options.cache,
        prices=prices,
        max_price=options.max_price,
    )
    print(json.dumps(report.to_json(), indent=1))
    return 3 if report.flagged else 0


def _reference(name: str) -> Any:
    from ritornello.common import models

    if name == "smollm2":
        return TransformersClient(models.load_smollm2(), models.load_smollm2_tokenizer())
    kind, _, place = name.partition(":")
    if kind != "hf" or not place:
        raise UserError(f"reference must be smollm2 or hf:<id or folder>, got {name!r}")
    model: Any = models.load_causal_lm(place)
    return TransformersClient(model, models.load_tokenizer(place))


if __name__ == "__main__":
    sys.exit(main())
