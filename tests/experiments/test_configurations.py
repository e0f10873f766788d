"""Every configuration of every paper composes, and its parts and arms can be built."""

from importlib import resources

import pytest

from ritornello.common.errors import UserError
from ritornello.common.reporting import load_card
from ritornello.experiments.app import build_plan, check_arguments, compose_config, papers, resolve

PROFILES = ("smoke", "small", "paper")


def plan_of(paper, profile, *overrides):
    # A GPU profile is composed here for the CPU: nothing is loaded.
    overrides = [f"experiment={paper}/{profile}", "device=cpu", *overrides]
    return build_plan(resolve(compose_config(overrides)))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("paper", papers())
def test_every_profile_composes_and_builds(paper, profile):
    plan = plan_of(paper, profile)
    assert plan.paper == paper
    assert plan.profile == profile
    assert plan.cells()
    keys = [cell.key for cell in plan.cells()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("paper", papers())
def test_claims_name_parts_and_arms_that_the_profile_has(paper):
    card = load_card(resources.files("ritornello.experiments").joinpath(paper, "card.yaml"))
    assert card.slug == paper
    assert card.claims
    for claim in card.claims:
        for profile in claim.profiles:
            plan = plan_of(paper, profile)
            check = claim.check
            assert check.part in plan.parts, claim.id
            arms = plan.parts[check.part].arms
            assert check.arm in arms, claim.id
            if isinstance(check.reference, str):
                assert check.reference in arms, claim.id


@pytest.mark.parametrize("paper", papers())
def test_every_claim_has_the_papers_figure_and_its_place(paper):
    card = load_card(resources.files("ritornello.experiments").joinpath(paper, "card.yaml"))
    for claim in card.claims:
        assert claim.paper.get("value") not in (None, ""), claim.id
        assert claim.paper.get("where"), claim.id


def test_a_mistyped_paper_gets_its_nearest_name():
    name = papers()[0]
    with pytest.raises(UserError, match=f"did you mean {name}"):
        check_arguments([f"experiment={name}x/small"])
    with pytest.raises(UserError, match="unknown profile 'tiny'"):
        check_arguments([f"experiment={name}/tiny"])
    with pytest.raises(UserError, match="which paper"):
        check_arguments([])


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("colour=red", "colour"),
        ("workers=0", "workers"),
        ("workers=many", "workers"),
        ("device=cuda:99", "cuda"),
        ("device=abacus", "abacus"),
        ("only.seedz=[1]", "seedz"),
    ],
)
def test_bad_overrides_are_one_message(override, named):
    with pytest.raises(UserError, match=named):
        compose_config([f"experiment={papers()[0]}/smoke", override])


@pytest.mark.parametrize("paper", papers())
def test_unknown_arguments_of_arms_and_parts_name_their_place(paper):
    plan = plan_of(paper, "smoke")
    part = next(iter(plan.parts))
    arm = next(iter(plan.parts[part].arms))
    for place in (f"parts.{part}.measure", f"parts.{part}.arms.{arm}"):
        with pytest.raises(UserError, match=place):
            plan_of(paper, "smoke", f"+{place}.no_such_argument=1")


@pytest.mark.parametrize(
    ("paper", "part", "overrides"),
    [
        ("rrs", "language_model", ["settings.text.path=absent"]),
        ("rrs", "four_bit_cache", ["settings.calibration_text.path=absent"]),
        ("probe_pruning", "language_model", ["settings.text.path=absent"]),
        ("probe_pruning", "probe_size", ["settings.calibration_text.path=absent"]),
        ("probe_pruning", "commonsense", ["parts.commonsense.measure.paths.boolq=./absent"]),
    ],
)
def test_texts_that_cannot_be_had_are_told_before_a_model_is_loaded(
    paper, part, overrides, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text")
    chosen = [f"experiment={paper}/paper", "device=cpu", "settings.text.path=text.txt", *overrides]
    with pytest.raises(UserError, match="absent"):
        build_plan(resolve(compose_config(chosen))).parts[part].measure.prepare()


def test_rrs_can_turn_models_whose_widths_have_no_hadamard_matrix():
    chosen = ["experiment=rrs/paper", "device=cpu", "settings.rotate_mode=random"]
    plan = build_plan(resolve(compose_config(chosen)))
    for name in ("language_model", "four_bit_cache", "four_bit_weights", "zero_shot", "outliers"):
        turned = [arm for arm in plan.parts[name].arms.values() if arm.rotate]
        assert {arm.rotate_mode for arm in turned} == {"random"}
