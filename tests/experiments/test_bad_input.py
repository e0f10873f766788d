"""Five hundred generated mistakes: each is one clear message, none starts work."""

import random

import pytest

from ritornello.common.chat import FakeServer, Fault, ScriptedClient
from ritornello.common.errors import UserError
from ritornello.common.runs import run
from ritornello.experiments.app import (
    build_plan,
    check_arguments,
    compose_config,
    papers,
    resolve,
)

CASES = 500
BLOCKS = 10


def swap_letters(dice: random.Random, word: str) -> str:
    """The word with a typing mistake in it."""
    i = dice.randrange(len(word))
    return word[:i] + dice.choice("qxz7") + word[i + 1 :]


def mistakes(dice: random.Random, paper: str, plan) -> list[str]:
    """Overrides with one mistake, and the experiment they belong to."""
    experiment = f"experiment={paper}/smoke"
    part = dice.choice(list(plan.parts))
    arm = dice.choice(list(plan.parts[part].arms))
    word = "".join(dice.choices("abcdefgh", k=dice.randint(3, 9)))
    number = dice.randint(-99, 0)
    kinds = {
        "paper": [f"experiment={swap_letters(dice, paper)}/smoke"],
        "profile": [f"experiment={paper}/{word}"],
        "key": [experiment, f"{word}={number}"],
        "added key": [experiment, f"+{word}={number}"],
        "type": [experiment, f"{dice.choice(['workers', 'threads'])}={word}"],
        "range": [experiment, f"{dice.choice(['workers', 'threads'])}={number}"],
        "boolean": [experiment, f"{dice.choice(['strict', 'fresh', 'cooperative'])}={word}x"],
        "paper of a profile": [experiment, f"paper={swap_letters(dice, paper)}"],
        "name of a profile": [experiment, f"profile={word}"],
        "no seeds": [experiment, f"parts.{part}.seeds=[]"],
        "a seed twice": [experiment, f"parts.{part}.seeds=[3,3]"],
        "no arms": [experiment, "only.arms=[]"],
        "no arm": [experiment, f"parts.{part}.arms.{arm}=null"],
        "device": [experiment, f"device={word}"],
        "part": [experiment, f"only.parts=[{word}]"],
        "arm": [experiment, f"only.arms=[{swap_letters(dice, arm)}x]"],
        "seed": [experiment, f"only.seeds=[{number - 1000}]"],
        "seed type": [experiment, f"only.seeds=[{word}]"],
        "argument": [experiment, f"+parts.{part}.arms.{arm}.{word}={number}"],
        "measure": [experiment, f"+parts.{part}.measure.{word}={number}"],
        "target": [experiment, f"parts.{part}.measure._target_=ritornello.{word}.{word}"],
        "arm target": [experiment, f"parts.{part}.arms.{arm}._target_=ritornello.{word}"],
        "no such part": [experiment, f"parts.{word}.seeds=[0]"],
        "grid": [experiment, f"+parts.{part}.grid.{word}={number}"],
        "empty grid": [experiment, f"+parts.{part}.grid.{word}=[]"],
        "seeds": [experiment, f"parts.{part}.seeds=[{word}]"],
        "group": [experiment, f"tracker={word}"],
        "syntax": [experiment, f"parts.{part}.seeds=[0,"],
        "tracker": [experiment, "tracker=wandb", f"tracker.mode={word}"],
    }
    return kinds[dice.choice(sorted(kinds))]


def understand(arguments: list[str]) -> None:
    """What the command does before any cell is measured."""
    from ritornello.experiments.app import instantiate

    check_arguments(arguments)
    config = resolve(compose_config(arguments))
    if config["tracker"]:
        instantiate(config["tracker"], "tracker")
    build_plan(config).cells(**config["only"])


@pytest.fixture(scope="module")
def plans():
    return {
        paper: build_plan(resolve(compose_config([f"experiment={paper}/smoke"])))
        for paper in papers()
    }


@pytest.mark.parametrize("block", range(BLOCKS))
def test_generated_mistakes_are_told_in_one_message(plans, block):
    for case in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        dice = random.Random(case)
        paper = dice.choice(sorted(plans))
        arguments = mistakes(dice, paper, plans[paper])
        with pytest.raises(UserError) as told:
            understand(arguments)
        message = str(told.value)
        assert 10 < len(message) < 2000, (arguments, message)
        assert "Traceback" not in message, (arguments, message)


@pytest.mark.parametrize("paper", papers())
def test_a_right_command_is_understood(paper):
    understand([f"experiment={paper}/smoke", "workers=2", "strict=true"])


@pytest.mark.parametrize("override", ["settings.text.path=~/x.txt", "settings.tokens=[1"])
def test_an_override_that_cannot_be_read_says_how_to_quote(override):
    with pytest.raises(UserError, match="quotes"):
        compose_config(["experiment=rrs/small", override])


def test_an_argument_that_the_yaml_leaves_out_can_be_overridden():
    arm = "parts.language_model.arms.rrs"
    twice = [f"{arm}.group_size=32", f"{arm}.group_size=64"]  # the last one counts
    cfg = compose_config(["experiment=rrs/small", *twice])
    assert cfg.parts.language_model.arms.rrs.group_size == 64
    for unknown in (f"{arm}.group_siz=64", "settings.unknown=1", "parts.language_model.unknown=1"):
        with pytest.raises(UserError, match="Could not override"):
            compose_config(["experiment=rrs/small", unknown])


CLIENT = "client@settings.client=openai"
SERVED = [
    ("space/paper", "questions", ["settings.base_url={url}"]),
    ("k_halu/small", "language_model", [CLIENT, "settings.client.base_url={url}"]),
    ("daily_dilemmas/small", "language_model", [CLIENT, "settings.client.base_url={url}"]),
]


@pytest.mark.parametrize(("profile", "part", "overrides"), SERVED)
def test_a_served_model_that_is_not_there_is_told_before_any_cell(
    profile, part, overrides, tmp_path
):
    refusing = FakeServer(ScriptedClient(str), misbehave=lambda n, body: Fault("status", 404))
    with refusing as server:
        named = ["settings.client.model=my-model"] if CLIENT in overrides else []
        given = [text.format(url=server.base_url) for text in overrides] + named
        plan = build_plan(resolve(compose_config([f"experiment={profile}", *given])))
        with pytest.raises(UserError, match=r"served model cannot be asked.* answered 404"):
            run(lambda config: plan, {}, tmp_path, only={"parts": [part]})
