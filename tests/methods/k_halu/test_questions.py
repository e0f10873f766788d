"""Loading, generating and asking questions."""

import json
import re
import unicodedata
from collections import Counter
from math import sqrt

import pytest
import torch

from ritornello.common.chat import (
    CapabilityError,
    Completion,
    ContextLengthError,
    ContinuationScores,
    OpenAIClient,
)
from ritornello.common.errors import UserError
from ritornello.common.evaluation import SampleError, evaluate
from ritornello.common.evaluation.baselines import (
    fixed_slot,
    liar,
    oracle,
    saying,
    uniform,
    uniform_single,
    uniform_subset,
)
from ritornello.methods.k_halu import (
    KHaluExactMatch,
    KHaluLogLikelihood,
    KHaluSupport,
    load_k_halu,
    make_synthetic_khalu,
    policy_client,
    sample_from_row,
    truncate_documents,
    write_lm_eval_tasks,
)
from ritornello.methods.k_halu.lexicon import NAMES, with_particle
from ritornello.methods.k_halu.policies import (
    by_support,
    lexical_support,
    noisy,
    sentence_support,
    single_pick,
    write_list,
    write_spaced_list,
)
from ritornello.methods.k_halu.prompts import EXAMPLE, likelihood_context, list_prompt, numbered
from ritornello.methods.k_halu.published import identical_cells, published_items
from ritornello.methods.k_halu.tasks import require_scores

ROW = {
    "date": "20210101",
    "document": "가온은 수원에 있다.",
    "instruction": "환각 문장을 고르시오.",
    **{str(i): f"문장 {i}" for i in range(1, 6)},
    "label": [0, 3],
}


def mean(records, part="set_match", reading="ours"):
    return sum(r.scores[reading].parts[part] for r in records) / len(records)


# Loading


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_files_of_every_kind_are_loaded(tmp_path, suffix):
    rows = [ROW, {**ROW, "label": [2], "id": "p60_tm_7"}]
    file = tmp_path / f"k_halu_test{suffix}"
    if suffix == ".jsonl":
        file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    elif suffix == ".json":
        file.write_text(json.dumps(rows))
    else:
        import pandas as pd

        pd.DataFrame([{**row, "id": str(i)} for i, row in enumerate(rows)]).to_parquet(file)
    for place in (file, tmp_path):
        first, second = load_k_halu(str(place))
        assert first.gold == (0, 3)
        assert first.labels == {"n_gold": 2, "polarity": "hallucinated", "domain": "unknown"}
        assert first.cluster == second.cluster
    if suffix != ".parquet":
        assert second.labels == {"n_gold": 1, "polarity": "faithful", "domain": "m"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": []}, "'label'"),
        ({"label": [0, 5]}, "'label'"),
        ({"label": [1, 1]}, "'label'"),
        ({"label": [0, 1, 2, 3]}, "'label'"),
        ({"label": "1"}, "'label'"),
        ({"label": [True]}, "'label'"),
        ({"3": None}, "'3' must be a string"),
        ({"document": 7}, "'document' must be a string"),
    ],
)
def test_a_row_that_is_no_question_is_told_with_its_place(tmp_path, change, message):
    file = tmp_path / "test.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW | change)}\n")
    with pytest.raises(SampleError, match=rf"test.jsonl, row 1: {message}"):
        load_k_halu(str(file))


def test_a_single_integer_is_a_label_and_broken_files_are_told(tmp_path):
    assert sample_from_row(ROW | {"label": 4}, 0).gold == (4,)
    file = tmp_path / "broken.jsonl"
    file.write_text("{")
    with pytest.raises(SampleError, match=r"broken.jsonl is not JSON"):
        load_k_halu(str(file))


def test_a_byte_order_mark_and_separators_within_a_document_break_no_file(tmp_path):
    file = tmp_path / "test.jsonl"
    row = json.dumps(ROW | {"document": "앞\u2028뒤\u0085끝"}, ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf" + f"{row}\r\n{row}\r\n".encode())
    first, second = load_k_halu(str(file))
    assert first.text == second.text == "앞\u2028뒤\u0085끝"


def test_what_is_not_there_is_told_with_the_ways_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for place in ("J-Seo/k_halu_samples", "/nowhere/k_halu_test_v1_1.jsonl"):
        with pytest.raises(UserError, match="AI-Hub data set 71872"):
            load_k_halu(place)
    with pytest.raises(UserError, match="holds no"):
        load_k_halu(str(tmp_path))


def test_polarity_is_unknown_where_nothing_tells():
    sample = sample_from_row(ROW | {"instruction": "문장을 고르시오."}, 0)
    assert sample.labels["polarity"] == "unknown"


# Generating


def test_generated_questions_keep_the_mixture_and_balance():
    samples = make_synthetic_khalu(84, 0)
    assert Counter(s.labels["n_gold"] for s in samples) == {1: 50, 2: 25, 3: 9}
    assert Counter(s.labels["polarity"] for s in samples) == {"faithful": 42, "hallucinated": 42}
    assert set(Counter(s.labels["domain"] for s in samples).values()) == {12}
    corruptions = Counter(c for s in samples for c in s.meta["corruptions"] if c)
    assert len(corruptions) == 5
    assert min(corruptions.values()) > 5
    slots = Counter(i for s in samples for i in s.gold)
    assert min(slots.values()) > 10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lang", ["ko", "en"])
def test_options_say_what_their_label_says(seed, lang):
    for sample in make_synthetic_khalu(60, seed, lang):
        texts = [choice.text for choice in sample.choices]
        assert len(set(texts)) == 5
        facts = []
        faithful = sample.labels["polarity"] == "faithful"
        for place, (text, statement) in enumerate(
            zip(texts, sample.meta["statements"], strict=True)
        ):
            assert text not in sample.text
            assert (place in sample.gold) == ((statement.corruption is None) == faithful)
            if statement.corruption in ("number_shift", "entity_swap"):
                assert statement.value != statement.fact.value
            if statement.fact:
                facts.append(statement.fact.relation.name)
        assert len(facts) == len(set(facts))
        assert sample.gold == tuple(sorted(sample.gold))
        if lang == "ko":
            assert sum("가" <= c <= "힣" for c in sample.text) <= 120


def test_every_option_names_the_subject_of_its_document():
    for sample in make_synthetic_khalu(40, 1, "en"):
        words = [set(re.findall(r"\w+", choice.text)) for choice in sample.choices]
        common = set.intersection(*words, set(re.findall(r"\w+", sample.text)))
        assert common & {english for _, english in NAMES}


def test_twins_ask_the_same_in_two_languages():
    korean, english = (make_synthetic_khalu(30, 5, lang) for lang in ("ko", "en"))
    for one, other in zip(korean, english, strict=True):
        assert (one.id, one.target, one.labels) == (other.id, other.target, other.labels)
        assert one.meta["statements"] == other.meta["statements"]
        assert one.text != other.text
    assert make_synthetic_khalu(30, 5)[7] == korean[7]
    assert make_synthetic_khalu(30, 6)[7] != korean[7]


@pytest.mark.parametrize(
    ("word", "particle", "joined"),
    [
        ("미술관", "은", "미술관은"),
        ("상사", "은", "상사는"),
        ("병원", "을", "병원을"),
        ("여수", "을", "여수를"),
        ("수원", "이", "수원이"),
        ("전주", "이", "전주가"),
        ("A", "이", "A가"),
    ],
)
def test_korean_particles_follow_the_last_sound(word, particle, joined):
    assert with_particle(word, particle) == joined


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0), "n must"), ((5, 0, "fr"), "lang must"), ((5, 0, "ko", 8), "domains must")],
)
def test_bad_requests_for_questions_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_synthetic_khalu(*arguments)
    with pytest.raises(ValueError, match="particle must"):
        with_particle("가", "도")


# Asking


@pytest.fixture(scope="module")
def questions():
    return make_synthetic_khalu(400, 0)


@pytest.mark.parametrize("protocol", [KHaluLogLikelihood, KHaluExactMatch])
def test_an_oracle_is_right_and_a_liar_is_not(questions, protocol):
    task = protocol(questions)
    right = evaluate(task, policy_client(task, oracle, "oracle"))
    assert mean(right) == mean(right, "jaccard") == mean(right, "set_match", "official") == 1
    wrong = evaluate(task, policy_client(task, liar, "liar"))
    assert mean(wrong) == 0


def test_blanks_before_commas_cost_everything_officially(questions):
    task = KHaluExactMatch(questions)
    client = policy_client(task, oracle, "oracle", write=write_spaced_list)
    records = evaluate(task, client)
    assert mean(records) == 1
    assert mean(records, "set_match", "official") == 0


def test_guessing_is_at_the_chance_of_its_rule(questions):
    task, em = KHaluLogLikelihood(questions), KHaluExactMatch(questions)
    n = len(questions)
    for kind, policy, part, chance in (
        (task, uniform(0), "set_match", 0.16),
        (em, uniform_subset(0), "set_match", 1 / 31),
        (em, uniform_single(0), "any_hit", 0.3),
    ):
        found = mean(evaluate(kind, policy_client(kind, policy, "random")), part)
        assert abs(found - chance) < 4 * sqrt(chance * (1 - chance) / n)


def test_a_single_pick_hits_more_often_the_more_is_right(questions):
    task = KHaluExactMatch(questions)
    records = evaluate(task, policy_client(task, uniform_single(3), "random"))
    for n in (1, 2, 3):
        part = [r for r in records if r.labels["n_gold"] == n]
        assert abs(mean(part, "any_hit") - n / 5) < 4 * sqrt(0.25 / len(part))
        assert mean(part) == (mean(part, "any_hit") if n == 1 else 0)


def test_copying_the_example_is_right_where_that_is_the_answer(questions):
    task = KHaluExactMatch(questions)
    records = evaluate(task, saying(EXAMPLE, name="copier"))
    share = sum(s.gold == (0, 2, 3) for s in questions) / len(questions)
    assert mean(records) == share > 0


def test_judging_each_option_well_falls_under_set_match_and_rises_under_any_hit(questions):
    """The same answers under two rules: only one pick with any hit rises, as published."""
    task = KHaluExactMatch(questions)
    whole = evaluate(task, policy_client(task, noisy(0.85, 1), "noisy"))
    pick = evaluate(task, policy_client(task, single_pick(noisy(0.85, 1)), "noisy pick"))

    def by_n(records, part):
        return [mean([r for r in records if r.labels["n_gold"] == n], part) for n in (1, 2, 3)]

    strict, lenient = by_n(whole, "set_match"), by_n(pick, "any_hit")
    assert max(strict) - min(strict) < 0.2
    assert lenient[0] + 0.1 < lenient[1]
    assert noisy(1, 0)(questions[0]) == list(questions[0].gold)
    with pytest.raises(ValueError, match="known"):
        noisy(1.5, 0)


def test_a_fixed_slot_shows_the_gap_between_place_and_item_scores(questions):
    task = KHaluExactMatch(questions)
    records = evaluate(task, policy_client(task, fixed_slot(4), "last"))
    share = sum(4 in s.gold for s in questions) / len(questions)
    assert mean(records, "any_hit") == pytest.approx(share)


def test_lexical_overlap_finds_verbatim_statements():
    sample = sample_from_row(ROW | {"1": "가온은 수원에 있다.", "label": [0]}, 0)
    assert lexical_support(sample)[0] == 1
    faithful = sample_from_row(
        ROW | {"1": "가온은 수원에 있다.", "label": [0], "instruction": "확인할 수 있는 문장"}, 0
    )
    assert by_support(lexical_support)(faithful) == [0]
    assert by_support(lexical_support)(sample) != [0]


def test_sentence_support_is_the_best_cosine():
    def encode(texts):
        return torch.tensor([[1.0, 0.0] if "수원" in text else [0.0, 1.0] for text in texts])

    sample = sample_from_row(ROW | {"2": "수원에 산다."}, 0)
    assert sentence_support(encode)(sample) == [0, 1, 0, 0, 0]


def test_without_a_count_all_close_options_are_taken():
    sample = sample_from_row(ROW, 0)
    task = KHaluLogLikelihood([sample], known_count=False, delta=0.5, normalise=None)
    scores = ContinuationScores(((-1.0,), (-1.4,), (-2.0,), (-1.5,), (-9.0,)), (False,) * 5)
    answer = task.parse(sample, scores)["ours"]
    assert answer.value == [0, 1, 3]
    assert task.score(sample, answer).parts["over"] == 1


def test_lengths_follow_the_choice_of_unit():
    decomposed = unicodedata.normalize("NFD", "문장 3")
    sample = sample_from_row(ROW | {"3": decomposed}, 0)
    scores = ContinuationScores(((-1.0,), (-1.0, -1.0), (-1.0,), (-1.0,), (-1.0,)), (False,) * 5)
    lengths = {
        unit: KHaluLogLikelihood([sample], normalise=unit).lengths(sample, scores)
        for unit in ("char", "byte", "token", None)
    }
    assert lengths["char"] == [7] * 5
    assert lengths["byte"] == [len("1. 문장 1".encode())] * 5
    assert lengths["token"] == [1, 2, 1, 1, 1]
    assert lengths[None] == [1] * 5
    official = KHaluLogLikelihood([sample]).lengths(sample, scores, composed=False)
    assert official[2] == len("3. ") + len(decomposed) > 7


def test_prompts_hold_what_they_must_and_differ_by_template():
    sample = make_synthetic_khalu(1, 0, "ko")[0]
    text = list_prompt(sample)
    assert text.count(EXAMPLE) == 3
    assert list_prompt(sample, example_lines=0).count(EXAMPLE) == 0
    assert text.endswith("정답: ")
    assert list_prompt(sample, rules="규칙").count("규칙") == 1
    for option in numbered(sample):
        assert option in text
    worked = KHaluLogLikelihood([sample], examples=(sample,)).render(sample)
    assert worked.prompt.text.count(likelihood_context(sample).strip()) == 2
    chat = KHaluLogLikelihood([sample], template="chat").render(sample)
    assert chat.asked.messages[0].text == likelihood_context(sample)
    assert chat.continuations[0].startswith("1. ")
    assert KHaluExactMatch([sample], template="chat").render(sample).asked.messages


def test_worked_lists_are_of_other_documents_and_end_with_their_answer():
    questions = make_synthetic_khalu(4, 0, "en")
    shown = KHaluExactMatch(questions, n_examples=2).render(questions[0]).prompt.text
    worked = [list_prompt(q) + write_list(q, q.gold) + "\n\n" for q in questions[1:3]]
    assert shown == "".join([*worked, list_prompt(questions[0])])


def test_the_official_parser_may_be_the_judge():
    (sample,) = make_synthetic_khalu(1, 0, "en")
    reply = Completion(write_spaced_list(sample, sample.gold))
    for parser, statuses in (("ours", ("ok", "unparsed")), ("official", ("unparsed",) * 2)):
        answers = KHaluExactMatch([sample], parser=parser).parse(sample, reply)
        assert (answers["ours"].status, answers["official"].status) == statuses


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KHaluLogLikelihood([], normalise="word"), "normalise must"),
        (lambda: KHaluLogLikelihood([], template="x"), "template must"),
        (lambda: KHaluExactMatch([], parser="x"), "parser must"),
        (lambda: KHaluExactMatch([], n_examples=-1), "n_examples must"),
        (lambda: KHaluLogLikelihood([], known_count=False), "delta exactly"),
        (lambda: KHaluLogLikelihood([], delta=1.0), "delta exactly"),
        (lambda: KHaluExactMatch([], example_lines=-1), "example_lines"),
        (lambda: KHaluExactMatch([], template="x"), "template must"),
    ],
)
def test_bad_settings_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(ValueError, match="language must be"):
        likelihood_context(sample_from_row(ROW | {"language": "fr"}, 0))


def test_support_is_asked_option_by_option_and_turned_by_polarity():
    questions = make_synthetic_khalu(12, 0, "en")
    task = KHaluSupport(questions)
    asked = task.samples()
    assert len(asked) == 60
    faithful = next(s for s in asked if s.labels["polarity"] == "faithful")
    hallucinated = next(s for s in asked if s.labels["polarity"] == "hallucinated")
    yes = ContinuationScores(((-0.1,), (-3.0,)), (True, False))
    assert task.parse(faithful, yes)["ours"].value == [1]
    assert task.parse(hallucinated, yes)["ours"].value == [0]
    for sample in (faithful, hallucinated):
        answer = task.parse(sample, yes)["ours"]
        right = (sample.meta["option"] in sample.gold) == bool(answer.value[0])
        assert task.score(sample, answer).value == float(right)


def test_malformed_lists_that_the_official_parser_reads_are_no_set():
    sample = sample_from_row(ROW, 0)
    task = KHaluExactMatch([sample])
    readings = task.parse(sample, Completion("[2, 0, 2, 0, 0]"))
    assert readings["official"].value == [2, 0, 2, 0, 0]
    assert readings["ours"].status == "unparsed"
    assert task.score(sample, readings["official"]).parts["under"] == 2


def test_a_client_without_likelihoods_is_sent_to_protocol_b():
    client = OpenAIClient("http://localhost:1/v1", "m")
    with pytest.raises(CapabilityError, match="exact match"):
        require_scores(client)


def test_documents_are_cut_at_their_start_and_the_cut_is_told():
    samples = make_synthetic_khalu(4, 0, "en")

    def prompt(sample):
        return likelihood_context(sample)

    longest = max(len(prompt(s)) for s in samples)
    whole = truncate_documents(samples, prompt, len, longest)
    assert [s.labels["truncated"] for s in whole] == [False] * 4
    cut = truncate_documents(samples, prompt, len, longest - 30)
    for before, after in zip(samples, cut, strict=True):
        assert len(prompt(after)) <= longest - 30
        assert before.text.endswith(after.text)
        if after.labels["truncated"]:
            assert len(prompt(after)) >= longest - 32
            assert after.meta["instruction"] in prompt(after)
    assert any(s.labels["truncated"] for s in cut)
    with pytest.raises(ContextLengthError, match="without its document"):
        truncate_documents(samples, prompt, len, 10)


def test_the_published_files_have_the_two_faults():
    assert identical_cells("gpt4-turbo", "gpt3.5") == 1
    assert identical_cells("gpt4o", "gpt3.5") < 0.3
    rising = [published_items("gpt4o", n_gold=n).mean() for n in (1, 2, 3)]
    assert rising == sorted(rising)
    with pytest.raises(ValueError, match="model must be one of"):
        published_items("gpt5")
    with pytest.raises(ValueError, match="no question"):
        published_items("gpt4o", domain="x")


def test_the_harness_gets_tasks_that_score_as_we_do(tmp_path):
    from ritornello.methods.k_halu import harness

    log, em, module = write_lm_eval_tasks(tmp_path, "data.jsonl")
    assert "doc_to_text: !function 'k_halu_functions.likelihood_text'" in log.read_text()
    assert "dataset_path: json" in em.read_text()
    namespace: dict = {}
    exec(module.read_text(), namespace)
    ranked = [(-9.0, False), (-1.0, False), (-9.0, False), (-1.0, False), (-9.0, False)]
    assert namespace["likelihood_scores"](ROW, ranked)["acc_norm"] == 0
    ranked = [(-1.0, False), (-9.0, False), (-9.0, False), (-1.0, False), (-9.0, False)]
    assert harness.likelihood_scores(ROW, ranked)["acc_norm"] == 1
    assert harness.official_f1([((0, 3), (0, 3))]) == 1
    assert harness.list_scores(ROW, ["[1 0 0 1 0]"]) == {"acc": 0.0, "acc_ours": 1.0}
    assert harness.list_target(ROW) == "[1, 0, 0, 1, 0]"
