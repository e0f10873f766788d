"""Solutions of the tiny student besides its first: right ones, second attempts, plain ones."""

from collections.abc import Sequence

from ritornello.common.chat import ChatClient, GenerationParams
from ritornello.experiments.supercorrect.world import WordSolutionTemplate
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import Solution, read_solution, solve

GREEDY = GenerationParams(max_tokens=40)


def right_solutions(
    client: ChatClient,
    problems: Sequence[MathProblem],
    cases: Sequence[ErrorCase],
    template: WordSolutionTemplate,
) -> list[tuple[str, Sequence[str]]]:
    """Problem and steps of every collected problem that the student answered right."""
    wrong = {case.id for case in cases}
    texts = [problem.problem for problem in problems if problem.id not in wrong]
    solutions = solve(client, texts, self_correct=False, template=template, params=GREEDY)
    return [(text, solution.steps) for text, solution in zip(texts, solutions, strict=True)]


def plain_case(case: ErrorCase) -> ErrorCase:
    """The same wrong solution without its Keys."""
    steps = tuple(
        f"{step.split('<K>')[0].strip()} = {step.split()[-2]} ;" if "<K>" in step else step
        for step in case.student_steps
    )
    return ErrorCase(**{**vars(case), "student_steps": steps})


def second_attempts(
    client: ChatClient,
    problems: Sequence[str],
    solutions: Sequence[Solution],
    template: WordSolutionTemplate,
    temperature: float,
) -> list[Solution]:
    """Reflexion of this world: where the model doubts step k, it draws the steps from k on anew.

    Its own correction is the reflection; only the place is used, no training and no ground truth.
    """
    params = GenerationParams(max_tokens=40, temperature=temperature)
    results = [Solution(s.steps, s.first_answer, s.first_answer, s.claims) for s in solutions]
    firsts = client.generate([template.prompt(problem) for problem in problems], GREEDY)
    doubted = [
        (index, solution.claims[0].step)
        for index, solution in enumerate(solutions)
        if solution.claims and solution.claims[0] is not None and solution.claims[0].step
    ]
    kept = [
        read_solution(template, firsts[index].text).steps[: place - 1] for index, place in doubted
    ]
    prompts = [
        template.prompt(problems[index], steps)
        for (index, _), steps in zip(doubted, kept, strict=True)
    ]
    answers = client.generate(prompts, params)
    for (index, _), steps, answer in zip(doubted, kept, answers, strict=True):
        rest = read_solution(template, answer.text)
        first = solutions[index].first_answer
        claims = solutions[index].claims
        results[index] = Solution((*steps, *rest.steps), rest.answer, first, claims)
    return results
