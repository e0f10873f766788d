"""What the experiment is made of: the tiny student, generated word problems, the whole pipeline."""

from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch
from shop import ShopSolver, shop_problems, shop_split

from ritornello.common.chat import (
    CapabilityError,
    GenerationParams,
    OpenAIClient,
    replicates,
)
from ritornello.common.errors import UserError
from ritornello.common.jsonl import read_jsonl
from ritornello.common.models.tiny import tiny_causal_lm
from ritornello.common.reporting import Results
from ritornello.common.runs import Cell, CellContext
from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings
from ritornello.experiments.supercorrect.attempts import plain_case
from ritornello.experiments.supercorrect.figures import figures
from ritornello.experiments.supercorrect.language_model import (
    LanguageModelStudy,
    Pipeline,
    _divide,
    _fitting,
    teacher_and_inspector,
)
from ritornello.experiments.supercorrect.problem_sets import math_problems
from ritornello.experiments.supercorrect.student import (
    WordModelClient,
    build_model,
    build_tokenizer,
    train_stage_one,
)
from ritornello.experiments.supercorrect.world import (
    WORDS,
    ModularWorld,
    StageOneData,
    corrupt,
    split_problems,
)
from ritornello.methods.supercorrect import (
    ErrorCase,
    MathProblem,
    OracleTeacher,
    build_hsft_dataset,
)

SIZE = {"width": 16, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def problems():
    return split_problems(np.random.default_rng(0), 20)[1]


def test_every_text_of_the_world_is_made_of_single_tokens(problems):
    tokenizer = build_tokenizer()
    data = StageOneData(ModularWorld.draw(np.random.default_rng(0)), "hierarchical", 0.5)
    rng = np.random.default_rng(1)
    for problem in problems:
        text = " ".join(data.row(problem, rng))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [WORDS[i] for i in ids] == text.split()
        assert len(ids) < 64


def test_training_depends_on_the_seed_alone(problems):
    def weights(seed):
        model = build_model(seed, **SIZE)
        data = StageOneData(ModularWorld(frozenset(), frozenset()), "plain")
        losses = train_stage_one(
            model, data, problems, steps=10, batch_size=4, learning_rate=1e-2, seed=seed
        )
        return losses, model.state_dict()

    losses, first = weights(0)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    again = weights(0)[1]
    other = weights(1)[1]
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_answers_do_not_depend_on_the_batch(problems):
    client = WordModelClient(build_model(0, **SIZE))
    texts = [problem.text for problem in problems] + ["<P> 1 :"]
    for params in (GenerationParams(max_tokens=9), GenerationParams(max_tokens=9, temperature=1.0)):
        together = client.generate(texts, params)
        apart = [client.generate([text], params)[0] for text in texts]
        assert [a.text for a in together] == [a.text for a in apart]
    draws = client.generate(
        replicates(texts[0], 6), GenerationParams(max_tokens=9, temperature=1.0)
    )
    assert len({draw.text for draw in draws}) > 1
    with pytest.raises(CapabilityError):
        client.score_continuations(texts, [["a"]] * len(texts))


def test_greedy_decoding_is_the_models_own_argmax(problems):
    client = WordModelClient(build_model(3, **SIZE))
    (answer,) = client.generate([problems[0].text], GenerationParams(max_tokens=5))
    ids = build_tokenizer()(problems[0].text)["input_ids"]
    for token in answer.token_ids:
        logits = client.model(input_ids=torch.tensor([ids])).logits[0, -1]
        assert token == int(logits.argmax())
        ids.append(token)


def test_a_wrong_solution_without_its_keys_keeps_its_error(problems):
    rng = np.random.default_rng(0)
    for problem in problems:
        steps = tuple(corrupt(problem, 0, "hierarchical", rng))
        case = ErrorCase("i", problem.text, "", "", steps, None)
        plain = plain_case(case).student_steps
        assert problem.first_error(list(plain)) == problem.first_error(list(steps)) == 1
        assert not any("<K>" in step for step in plain)


def test_the_shop_oracle_writes_what_the_review_accepts():
    problems = shop_problems(8, seed=3)
    oracle = OracleTeacher(ShopSolver())
    data = build_hsft_dataset(problems, oracle, oracle)
    assert len(data.rows) == 8
    assert all(row["trace"]["answer"] == row["answer"] for row in data.rows)
    solver = ShopSolver()
    text = problems[0].problem
    right = problems[0].solution.splitlines()
    assert solver.correction(text, right).step is None
    assert solver.correction(text, [right[0], "x = 99999"]).step == 2
    assert solver.correction(text, ["x = 99999", right[1]]).step == 1
    assert solver.correction(text, right[:1]).step == 1


CHAT = "{% for m in messages %}{{ m.content }} {% endfor %}"


def chat_tokenizer():
    """A few words and tags; all others are one token, which is text like any other."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789*-=", "pens", "boxes"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[^>]*>|\w+|\S"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = CHAT
    return tokenizer


def tiny_study(folder):
    """A random tiny Llama, which answers nothing right, with an oracle as teacher."""
    oracle = OracleTeacher(ShopSolver())
    study = LanguageModelStudy(
        model=lambda: tiny_causal_lm(
            width=16, hidden=24, heads=2, vocabulary=19, max_positions=1024
        ),
        tokenizer=chat_tokenizer,
        problems=shop_split,
        teacher=lambda: (oracle, oracle),
        limit=6,
        collect_from=0.5,
        hsft=SFTSettings(learning_rate=1e-2, max_steps=4, batch_size=2, save_steps=2),
        preferences=PreferenceSettings(max_steps=2, batch_size=2),
        max_tokens=12,
    )
    context = CellContext(folder / "scratch", folder / "artifacts")
    context.scratch.mkdir(), context.artifacts.mkdir()
    return study, context


@pytest.mark.parametrize(
    "arm",
    [
        Pipeline("hsft", "cross_dpo"),
        Pipeline("hsft", "instance_dpo"),
        Pipeline("hsft", "teacher_sft"),
        Pipeline("sft", "reflexion"),
    ],
    ids=["cross_dpo", "instance_dpo", "teacher_sft", "reflexion"],
)
def test_the_language_model_pipeline_runs_from_problems_to_measurements(arm, tmp_path):
    """Nothing is answered right; every stage gets its rows all the same."""
    study, context = tiny_study(tmp_path)
    cell = Cell("language_model", "a", 0)
    measurements = list(study.measure(arm, cell, context))
    measured = {m.metric: m.value for m in measurements}
    passed = {m.coordinates["protocol"]: m for m in measurements if m.metric == "pass_at_1"}
    assert passed.keys() == {"instruction", "native", "few_shot"}
    assert all(m.coordinates["source"] == "shop" and m.value == 0.0 for m in passed.values())
    assert all(len(m.samples) == 6 for m in passed.values())
    assert measured["verified_accuracy"] == 0.0
    assert measured["wrong_solutions"] >= 0
    thoughts = context.artifacts / "thoughts.jsonl"
    assert thoughts.exists() == (arm.first_stage == "hsft")
    assert not thoughts.exists() or len(read_jsonl(thoughts)) == 3
    if arm.second_stage == "reflexion":
        assert not (context.artifacts / "pairs.jsonl").exists()
    else:
        pairs = read_jsonl(context.artifacts / "pairs.jsonl")
        assert pairs
        assert all({"id", "prompt", "chosen", "rejected"} <= pair.keys() for pair in pairs)
        # whole solutions are written as the prompt asks for them
        assert arm.second_stage != "instance_dpo" or "<Step1>" in pairs[0]["chosen"]
    if arm.second_stage == "teacher_sft":  # it does not continue stage 1's checkpoints
        assert (context.scratch / "imitation" / "hsft" / "checkpoint-4").is_dir()
    record = {"cell": asdict(cell), "measurements": [m.as_record() for m in measurements]}
    drawn = figures(Results.from_records([record], tmp_path))
    assert [figure.name for figure in drawn] == ["pass_at_1_by_protocol"]


def test_second_stages_on_corrections_start_from_hierarchical_thoughts(tmp_path):
    study, context = tiny_study(tmp_path)
    with pytest.raises(ValueError, match="must start from an HSFT model"):
        list(study.measure(Pipeline("none", "cross_dpo"), Cell("lm", "a", 0), context))


def test_sampled_runs_over_the_hardest_problems_are_measured_and_drawn(tmp_path):
    """Fig. 5."""
    study, context = tiny_study(tmp_path)

    def graded(split, limit):
        problems = shop_split(split, limit)
        return [replace(p, level=5 - i % 2) for i, p in enumerate(problems)]

    study.problems, study.repeats, study.repeat_problems = graded, 3, 2
    measurements = list(study.measure(Pipeline("hsft"), Cell("language_model", "a", 0), context))
    sampled = {m.metric: m for m in measurements if m.metric.startswith("sampled")}
    assert len(sampled["sampled_accuracy"].samples) == 3
    assert sampled.keys() == {"sampled_accuracy", "sampled_spread", "sampled_deviation"}
    record = {"cell": asdict(Cell("language_model", "a", 0))}
    record["measurements"] = [m.as_record() for m in measurements]
    drawn = [figure.name for figure in figures(Results.from_records([record], tmp_path))]
    assert drawn == ["repeats", "pass_at_1_by_protocol"]


def test_rows_that_are_too_long_for_training_are_left_out_and_stop_nothing():
    rows = [{"prompt": "1 2", "completion": text} for text in ("3", "3 4 5 6 7", " ")]
    pairs = [{"prompt": "1 2", "chosen": "3", "rejected": text} for text in ("4", "4 5 6 7 8")]
    assert _fitting(chat_tokenizer(), rows, SFTSettings(max_length=5)) == rows[:1]
    assert _fitting(chat_tokenizer(), pairs, PreferenceSettings(max_length=5)) == pairs[:1]


def test_math_is_read_from_a_folder_laid_out_as_on_the_hub(tmp_path):
    import pandas as pd

    for subject, levels in (("algebra", ["Level 5", "Level ?"]), ("geometry", ["Level 2"])):
        (tmp_path / subject).mkdir()
        rows = [
            {"problem": subject, "level": level, "solution": r"so \boxed{7}"} for level in levels
        ]
        pd.DataFrame(rows).to_parquet(tmp_path / subject / "test-00000-of-00001.parquet")
    problems = math_problems("test", path=str(tmp_path))
    assert sorted(str(p.level) for p in problems) == ["2", "5", "None"]
    assert {p.answer for p in problems} == {"7"}
    with pytest.raises(UserError, match=r"no file \*/train-\*\.parquet"):
        math_problems("train", path=str(tmp_path))


def test_too_few_examples_are_told_before_anything_is_trained(tmp_path):
    study, _ = tiny_study(tmp_path)
    study.prepare()
    study.limit = 3
    with pytest.raises(UserError, match="examples must hold at least 4, got 3"):
        study.prepare()


def test_every_source_gives_problems_to_both_stages():
    problems = [
        MathProblem(f"{source}{i}", "p", "1", "s", source)
        for source, count in (("math", 10), ("gsm8k", 6))
        for i in range(count)
    ]
    collected, imitated = _divide(problems, 0.3)
    assert [p.id for p in collected] == ["math0", "math1", "math2", "gsm8k0", "gsm8k1"]
    assert sorted(p.id for p in collected + imitated) == sorted(p.id for p in problems)


@pytest.mark.slow
def test_the_whole_pipeline_runs_on_smollm2(tmp_path):
    """LoRA, eight steps per stage, 32 problems: prompts, parser and trainers fit together."""
    pytest.importorskip("gguf")
    from ritornello.common.models import load_smollm2, load_smollm2_tokenizer

    oracle = OracleTeacher(ShopSolver())
    study = LanguageModelStudy(
        model=load_smollm2,
        tokenizer=load_smollm2_tokenizer,
        problems=shop_split,
        teacher=lambda: (oracle, oracle),
        limit=12,
        collect_from=0.5,
        hsft=SFTSettings(learning_rate=2e-4, max_steps=8, batch_size=2, lora_rank=8),
        preferences=PreferenceSettings(
            learning_rate=1e-4, max_steps=4, batch_size=2, micro_batch_size=1, lora_rank=8
        ),
        max_tokens=96,
    )
    context = CellContext(tmp_path / "scratch", tmp_path / "artifacts")
    context.scratch.mkdir(), context.artifacts.mkdir()
    cell = Cell("language_model", "hsft_cross_dpo", 0)
    measured = {
        m.metric: m.value for m in study.measure(Pipeline("hsft", "cross_dpo"), cell, context)
    }
    assert 0 <= measured["verified_accuracy"] <= 1
    assert (context.artifacts / "thoughts.jsonl").exists()


def test_a_teacher_that_is_not_there_is_told_before_anything_is_trained(tmp_path):
    study, _ = tiny_study(tmp_path)
    study.teacher = partial(
        teacher_and_inspector, client=partial(OpenAIClient, "http://localhost:9/v1", "absent")
    )
    with pytest.raises(UserError, match="requests to absent at http://localhost:9/v1 failed"):
        study.prepare()
