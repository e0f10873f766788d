"""Data building, self-correction and its evaluation with scripted students of known skill."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ritornello.common.chat import GenerationParams, ScriptedClient
from ritornello.common.errors import UserError
from ritornello.experiments.supercorrect.world import (
    ModularSolver,
    ModularWorld,
    Problem,
    WordCorrectionTemplate,
    WordSolutionTemplate,
    corrupt,
    read_problem,
    split_problems,
)
from ritornello.methods.supercorrect import (
    CorrectionTemplate,
    ErrorCase,
    HierarchicalTemplate,
    LLMInspector,
    LLMTeacher,
    MathProblem,
    OracleTeacher,
    build_correction_pairs,
    build_hsft_dataset,
    collect_errors,
    evaluate_correction,
    solve,
)
from ritornello.methods.supercorrect.baselines import (
    instance_dpo_pairs,
    plain_sft_rows,
    reflexion,
    teacher_sft_rows,
)
from ritornello.methods.supercorrect.evaluation import repeated_accuracy

STYLE = "hierarchical"
SOLVER = ModularSolver(STYLE)
SOLUTION, CORRECTION = WordSolutionTemplate(STYLE), WordCorrectionTemplate()
WORDS = {"template": CORRECTION, "params": GenerationParams(max_tokens=40)}


def right_correction(case, claim):
    return SOLVER.is_right_correction(case.problem, case.student_steps, claim)


@pytest.fixture(scope="module")
def problems():
    return split_problems(np.random.default_rng(0), 40)[1]


@pytest.fixture(scope="module")
def cases(problems):
    rng = np.random.default_rng(1)
    made = []
    for problem in problems:
        place = int(rng.integers(2))
        steps = tuple(corrupt(problem, place, STYLE, rng))
        case = ErrorCase(problem.text, problem.text, str(problem.answer), "", steps, "-")
        made.append(case.with_error(place + 1))
    return made


def scripted(reply):
    return ScriptedClient(lambda prompt, params: reply(prompt.text or prompt.messages[-1].text))


def split_question(text):
    """Problem and steps of a correction question of the world."""
    problem, _, rest = text.removesuffix(" <C>").partition(" :")
    steps = [f"{step.strip()} ;" for step in rest.split(";") if step.strip()]
    return f"{problem} :", steps


def oracle_student(text):
    return SOLVER.write(SOLVER.correction(*split_question(text)))


def test_world_splits_all_problems_and_withholds_facts():
    training, test = split_problems(np.random.default_rng(3), 100)
    assert len(training) + len(test) == 3087
    assert not set(training) & set(test)
    world = ModularWorld.draw(np.random.default_rng(0))
    assert (len(world.withheld), len(world.bottleneck)) == (16, 8)
    assert not world.withheld & world.bottleneck
    for problem in world.sample(np.random.default_rng(1), training, 200):
        for operator, fact in problem.facts():
            assert fact not in (world.bottleneck if operator == "*" else world.withheld)


def test_exact_solver_finds_the_first_error():
    problem = Problem(3, (("@", 4), ("+", 5)))  # 3*4+3 = 15 = 1; 1+5 = 6
    assert problem.solution("plain") == ["3 @ 4 = 1 ;", "1 + 5 = 6 ;"]
    assert problem.solution(STYLE)[0] == "3 @ 4 <K> 3 * 4 = 5 + 3 = 1 ;"
    assert read_problem(problem.text) == problem
    assert problem.first_error(problem.solution(STYLE)) is None
    assert problem.first_error(["3 @ 4 = 2 ;", "2 + 5 = 0 ;"]) == 1  # carried on: still the first
    assert problem.first_error(["3 @ 4 = 1 ;", "1 + 5 = 0 ;"]) == 2
    assert problem.first_error(["3 @ 4 = 1 ;"]) == 2


@pytest.mark.parametrize(
    ("reply", "locate", "correct"),
    [
        (oracle_student, 1.0, 1.0),
        (lambda text: "<OK>", 0.0, 0.0),
        (lambda text: "nonsense", 0.0, 0.0),
    ],
)
def test_students_of_known_skill_score_exactly(cases, reply, locate, correct):
    scores = evaluate_correction(scripted(reply), cases, is_right=right_correction, **WORDS)
    assert scores == {"locate": locate, "correct": correct}


def test_a_constant_place_locates_its_share_and_corrects_nothing(cases):
    scores = evaluate_correction(
        scripted(lambda text: "#1 9 ;"), cases, is_right=right_correction, **WORDS
    )
    assert scores["locate"] == sum(case.first_error == 1 for case in cases) / len(cases)
    assert scores["correct"] == 0.0


def test_evaluation_refuses_unknown_errors(cases):
    with pytest.raises(ValueError, match="first_error"):
        evaluate_correction(scripted(oracle_student), [replace(cases[0], first_error=None)])
    with pytest.raises(ValueError, match="cases"):
        evaluate_correction(scripted(oracle_student), [])
    with pytest.raises(ValueError, match="first_error"):
        cases[0].with_error(3)


def test_pairs_hold_teacher_against_student_at_the_first_error(cases):
    oracle = OracleTeacher(SOLVER)
    data = build_correction_pairs(cases, oracle, scripted(lambda t: "<OK>"), oracle, **WORDS)
    assert len(data.rows) == len(cases)
    for row, case in zip(data.rows, cases, strict=True):
        assert row["error_step"] == case.first_error
        assert row["prefix_steps"] == list(case.student_steps[: case.first_error - 1])
        assert row["rejected"] == "<OK>"
        claim = CORRECTION.parse(row["chosen"])
        assert right_correction(case, claim)
    assert data.statistics["chosen_longer"] == 1.0
    assert [case.id for case in data.cases] == data["id"]
    assert {case.student_trace for case in data.cases} == {"<OK>"}
    assert [case.teacher_trace for case in data.cases] == data["chosen"]
    assert [r["completion"] for r in teacher_sft_rows(data.rows)] == [
        r["chosen"] for r in data.rows
    ]


def test_pairs_whose_student_is_right_or_whose_teacher_sees_no_error_are_dropped(cases):
    oracle = OracleTeacher(SOLVER)
    data = build_correction_pairs(cases, oracle, scripted(oracle_student), oracle, **WORDS)
    assert data.rows == []
    assert data.dropped == {"student_is_right": len(cases)}
    data = build_correction_pairs(cases, oracle, scripted(oracle_student), **WORDS)
    assert data.dropped == {"identical": len(cases)}
    assert data.cases == []
    blind = LLMTeacher(scripted(lambda t: "<OK>"), correction=CORRECTION)
    data = build_correction_pairs(cases, blind, scripted(oracle_student), **WORDS)
    assert data.dropped == {"no_error_found": len(cases)}


def test_an_inspector_is_asked_about_all_students_corrections_at_once(cases):
    """A call for each would wait for an endpoint as often as there are pairs."""
    sizes = []

    class Content(ScriptedClient):
        def generate(self, prompts, params, **options):
            sizes.append(len(prompts))
            return super().generate(prompts, params, **options)

    inspector = LLMInspector(Content(lambda prompt, params: "OK"))
    build_correction_pairs(
        cases, OracleTeacher(SOLVER), scripted(oracle_student), inspector, **WORDS
    )
    assert sizes == [len(cases), len(cases)]  # the teacher's corrections, then the student's


def test_collecting_keeps_exactly_the_wrong_answers(problems):
    wrong = {problem.text for problem in problems[::3]}
    rng = np.random.default_rng(2)

    def reply(text):
        problem = read_problem(text)
        if text not in wrong:
            return SOLVER.solution(text)
        steps = corrupt(problem, 1, STYLE, rng)
        return f"{' '.join(steps)} <A> {steps[-1].split()[-2]}"

    rows = [MathProblem(p.text, p.text, str(p.answer), SOLVER.solution(p.text)) for p in problems]
    found = collect_errors(
        scripted(reply), rows, lambda a, b: a == b, template=SOLUTION, params=WORDS["params"]
    )
    assert {case.id for case in found} == wrong
    pairs = instance_dpo_pairs(found, SOLUTION)
    assert len(pairs) == len(wrong)
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)


def test_verification_repairs_wrong_solutions_and_keeps_right_ones(problems):
    rng = np.random.default_rng(4)

    def reply(text):
        if text.endswith("<C>"):
            return oracle_student(text)
        problem, steps = split_question(text)
        exact = read_problem(problem)
        if steps:  # goes on after the corrected step
            rest = exact.solution(STYLE)[len(steps) :]
            return f"{' '.join(rest)} <A> {exact.answer}"
        made = corrupt(exact, 0, STYLE, rng)
        return f"{' '.join(made)} <A> {made[-1].split()[-2]}"

    texts = [problem.text for problem in problems]
    options = {"template": SOLUTION, "correction": CORRECTION, "params": WORDS["params"]}
    solved = solve(scripted(reply), texts, **options)
    assert [s.answer for s in solved] == [str(p.answer) for p in problems]
    assert all(
        problem.first_error(list(s.steps)) is None
        for problem, s in zip(problems, solved, strict=True)
    )
    plain = solve(scripted(reply), texts, self_correct=False, **options)
    assert all(s.answer == s.first_answer and not s.claims for s in plain)
    twice = solve(scripted(reply), texts, max_rounds=2, **options)
    assert all(s.claims[-1].step is None for s in twice)
    with pytest.raises(ValueError, match="max_rounds"):
        solve(scripted(reply), texts, max_rounds=4)
    with pytest.raises(ValueError, match="repair"):
        solve(scripted(reply), texts, repair="other")


def corrected(text):
    notes = f"<Cause>sum</Cause><Correction>{text}</Correction>"
    return f"<Step1>1+1=3{notes}</Step1><Answer>2</Answer>"


def test_answer_repair_takes_the_corrections_answer():
    def reply(text):
        if "Student's solution" in text:
            return corrected("1+1=2")
        return "<Step1>1+1=3</Step1><Generalized>add</Generalized><Answer>3</Answer>"

    solved = solve(scripted(reply), "1+1?", repair="answer")
    assert (solved.first_answer, solved.answer, solved.steps) == ("3", "2", ("1+1=2",))


PROBLEMS = [
    MathProblem(f"q{i}", f"What is {i}+{i}?", str(2 * i), f"{i}+{i}={2 * i}") for i in range(6)
]


def thought(answer):
    return f"<Step1>add</Step1><Generalized>add</Generalized><Answer>{answer}</Answer>"


def question_number(text):
    return int(text.split("What is ")[1].split("+")[0])


def test_teacher_texts_run_through_the_review(tmp_path):
    """q0 never parses, q1 is wrong at first and revised, q2 is always wrong, the rest is right."""
    asked = []

    def reply(text):
        number = question_number(text)
        asked.append(number)
        if number == 0:
            return "no tags"
        if number == 2 or (number == 1 and "objected" not in text):
            return thought(99)
        return thought(2 * number)

    journal = tmp_path / "journal.jsonl"
    teacher = LLMTeacher(scripted(reply))
    data = build_hsft_dataset(PROBLEMS, teacher, journal=journal)
    assert [row["id"] for row in data.rows] == ["q1", "q3", "q4", "q5"]
    assert [row["inspector_rounds"] for row in data.rows] == [1, 0, 0, 0]
    assert data.dropped == {"unparsable": 1, "rejected": 1}
    assert asked.count(0) == 3  # three attempts to parse
    assert asked.count(2) == 4  # one attempt and three revisions
    row = data[0]
    assert (len(data), data["id"]) == (4, [r["id"] for r in data])
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert row["prompt"][0]["content"].endswith("What is 1+1?")
    assert row["completion"] == thought(2).replace("><", ">\n<")
    states = [json.loads(line)["state"] for line in journal.read_text().splitlines()]
    assert {
        "TEACHER",
        "PARSED",
        "INSPECTED",
        "REVISE",
        "ACCEPTED",
        "REJECTED",
        "UNPARSABLE",
    } == set(states)


def test_an_interrupted_review_goes_on_without_asking_again(tmp_path):
    journal = tmp_path / "journal.jsonl"
    whole = build_hsft_dataset(
        PROBLEMS[3:],
        LLMTeacher(scripted(lambda t: thought(2 * question_number(t)))),
        journal=journal,
    )
    with journal.open("a") as file:
        file.write('{"stage": "hsft", "id": "q')  # killed while writing
    asked = []

    def reply(text):
        asked.append(question_number(text))
        return thought(2 * question_number(text))

    again = build_hsft_dataset(PROBLEMS[1:], LLMTeacher(scripted(reply)), journal=journal)
    assert asked == [1, 2]
    assert again.rows[2:] == whole.rows
    third = build_hsft_dataset(PROBLEMS[1:], LLMTeacher(scripted(reply)), journal=journal)
    assert asked == [1, 2]
    assert third.rows == again.rows


def test_no_question_is_asked_twice_in_the_same_words():
    """A greedy teacher would repeat itself: every retry says what was wrong with all attempts."""
    teacher = scripted(
        lambda text: "no tags" if text.count("could not be read") < 2 else thought(2)
    )
    data = build_hsft_dataset(PROBLEMS[1:2], LLMTeacher(teacher))
    assert [row["id"] for row in data.rows] == ["q1"]
    texts = [call.messages[-1].text for call in teacher.calls]
    assert len(set(texts)) == len(texts) == 3
    assert "1. it could not be read: no step, no generalisation, no answer\n2. it" in texts[2]


def test_objections_reach_a_teacher_that_is_asked_in_raw_text(cases):
    """The world's correction format has plain-text prompts."""
    seen = []

    def reply(text):
        seen.append(text)
        return "#2 nonsense" if len(seen) == 1 else oracle_student(text.split("\n\n")[0])

    teacher = LLMTeacher(scripted(reply), correction=CORRECTION)
    oracle = OracleTeacher(SOLVER)
    case = next(case for case in cases if case.first_error == 1)
    data = build_correction_pairs([case], teacher, scripted(lambda t: "<OK>"), oracle, **WORDS)
    assert [row["error_step"] for row in data.rows] == [1]
    assert seen[1].startswith(seen[0])
    assert "1. it does not correct the first error" in seen[1]


def test_a_journal_of_another_template_is_refused(tmp_path):
    journal = tmp_path / "journal.jsonl"
    short = HierarchicalTemplate(generalized=False)
    teacher = LLMTeacher(scripted(lambda text: "<Step1>add</Step1><Answer>2</Answer>"))
    build_hsft_dataset(PROBLEMS[1:2], teacher, template=short, journal=journal)
    with pytest.raises(UserError, match=r"journal.jsonl holds .*'q1'.* another template"):
        build_hsft_dataset(PROBLEMS[1:2], teacher, journal=journal)


def test_a_problem_without_an_answer_is_refused():
    with pytest.raises(ValueError, match="answer of problem 'q'"):
        MathProblem("q", "What?", " ", "s")


def test_ids_must_be_unique():
    with pytest.raises(ValueError, match="ids"):
        build_hsft_dataset([PROBLEMS[0], PROBLEMS[0]], LLMTeacher(scripted(lambda t: "")))


def test_an_inspector_model_sends_faulty_corrections_back():
    case = ErrorCase("q1", "What is 1+1?", "2", "1+1=2", ("1+1=3",), "3")
    wrong, right = "1+1=4", "1+1=2"

    def teach(text):
        text = right if "objected" in text else wrong
        return corrected(text)

    def inspect(text):
        return "OK" if f"Correction: {right}" in text else "1+1 is not 4"

    teacher = scripted(teach)
    data = build_correction_pairs(
        [case],
        LLMTeacher(teacher),
        scripted(lambda t: "<Step1>1+1=3</Step1>"),
        LLMInspector(scripted(inspect)),
    )
    assert right in data.rows[0]["chosen"]
    assert data.rows[0]["rejected"] == "</Step1>"
    assert "Reference solution" in teacher.calls[0].messages[0].text
    with pytest.raises(ValueError, match="solution"):
        CorrectionTemplate().prompt("p", ["s"], "leak")


def test_a_case_without_steps_is_dropped():
    case = ErrorCase("q1", "p", "2", "s", (), None)
    data = build_correction_pairs(
        [case], LLMTeacher(scripted(lambda t: "")), scripted(lambda t: "")
    )
    assert data.rows == []
    assert data.dropped == {"no_steps": 1}


def test_reflexion_attempts_twice_and_sees_no_reference():
    def reply(text):
        if "reflect" in text:
            return "I added wrongly."
        return thought(2 if "Reflection" in text else 3)

    client = scripted(reply)
    (solved,) = reflexion(client, ["What is 1+1?"])
    assert (solved.first_answer, solved.answer) == ("3", "2")
    assert len(client.calls) == 3
    assert not any("Reference" in call.messages[-1].text for call in client.calls)


def test_plain_rows_imitate_the_reference():
    row = plain_sft_rows(PROBLEMS[1:2])[0]
    assert row["completion"] == "1+1=2\n<Answer>2</Answer>"


def test_repeated_runs_are_judged_run_by_run():
    client = ScriptedClient(lambda prompt, params: thought(2 if prompt.sample % 2 else 3))
    runs = repeated_accuracy(
        client, PROBLEMS[1:2], repeats=4, params=GenerationParams(temperature=1.0)
    )
    assert runs == [[False], [True], [False], [True]]
