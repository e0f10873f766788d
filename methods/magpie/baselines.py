"""What the paper compares with: Self-Instruct queries, and a base model's in-context answers.

Self-Instruct (Wang et al., 2023) imitates seed tasks and filters by ROUGE-L. URIAL (Lin et al.,
2024) answers with a base model that sees a few answered queries first: the reference of the
reward difference.
"""

import re
from collections.abc import Sequence

import numpy as np

from ritornello.common.chat import ChatClient, GenerationParams, Message, Prompt, replicates
from ritornello.methods.magpie.generator import Instruction

SEED_TASKS = (
    "Write a short apology to a neighbour for the noise of last night's party.",
    "Explain why the sky is blue to a ten-year-old.",
    "Plan a three-day hiking trip for two people with a small budget.",
    "What is the difference between a virus and a bacterium?",
    "Turn this list of ingredients into a recipe: rice, eggs, spinach, cheese.",
    "Write a Python function that counts the vowels in a word.",
    "Suggest five names for a bakery that opens at night.",
    "A train travels 120 km in 1.5 hours. What is its average speed?",
    "Correct the grammar of this sentence: He go to school every days.",
    "Translate 'Where is the nearest station?' into Spanish.",
    "Give me advice on how to prepare for a job interview.",
    "Describe a quiet street in the rain in four lines of verse.",
)
_SHOTS = 3


class SelfInstructGenerator:
    """Shows three seed tasks in a numbered list and lets the model write the fourth.

    Args:
        llm: the model, asked through its chat template.
        seed_tasks: pool the examples are drawn from.
        temperature: of the draws, > 0.
        top_p: of the draws.
        max_new_tokens: budget of a task.
        max_rouge: a task is kept if its ROUGE-L against every kept one is below this.
        seed: of the draws and of the choice of examples.
    """

    def __init__(
        self,
        llm: ChatClient,
        *,
        seed_tasks: Sequence[str] = SEED_TASKS,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 2048,
        max_rouge: float = 0.7,
        seed: int = 0,
    ) -> None:
        if len(seed_tasks) < _SHOTS:
            raise ValueError(f"seed_tasks must hold at least {_SHOTS}, got {len(seed_tasks)}")
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature}")
        self.llm = llm
        self.seed_tasks = tuple(seed_tasks)
        self.max_rouge = max_rouge
        self.seed = seed
        self.params = GenerationParams(
            max_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=(f"\n{_SHOTS + 2}.", f"\n{_SHOTS + 2} "),
            seed=seed,
        )

    def instructions(self, n: int, *, first: int = 0) -> list[Instruction]:
        """Draws tasks number `first` to `first + n - 1`; not yet filtered by ROUGE."""
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        prompts = [self._prompt(index) for index in range(first, first + n)]
        completions = self.llm.generate(prompts, self.params)
        return [
            Instruction(
                completion.text.strip(),
                completion.finish_reason,
                completion.token_ids,
                prompt.sample,
                natural_stop=completion.finish_reason == "stop",
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

    def novel(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Those unlike every seed task and every one kept before (ROUGE-L < max_rouge)."""
        pool, kept = list(self.seed_tasks), []
        for instruction in instructions:
            if all(rouge_l(instruction.text, other) < self.max_rouge for other in pool):
                pool.append(instruction.text)
                kept.append(instruction)
        return kept

    def _prompt(self, index: int) -> Prompt:
        rng = np.random.default_rng([self.seed, index])
        shown = rng.choice(len(self.seed_tasks), _SHOTS, replace=False)
        tasks = "\n".join(f"{k}. {self.seed_tasks[i]}" for k, i in enumerate(shown, 1))
        request = f"Come up with a series of tasks that a user could give to an assistant:\n{tasks}"
        prompt = Prompt((Message.user(request),), prefill=f"{_SHOTS + 1}.")
        return replicates(prompt, 1, first=index)[0]


def rouge_l(a: str, b: str) -> float:
    """F-measure of the longest common subsequence of words, case ignored; 0 for empty texts."""
    left, right = (re.findall(r"\w+", text.lower()) for text in (a, b))
    if not left or not right:
        return 0.0
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for j, other in enumerate(right, 1):
            above = row[j]
            row[j] = diagonal + 1 if word == other else max(above, row[j - 1])
            diagonal = above
    return 2 * row[-1] / (len(left) + len(right))


_URIAL_EXAMPLES = (
    (
        "What is a good way to learn the names of trees?",
        "Start with the five most common trees where you live. Learn each by leaf, bark and shape, "
        "and name them aloud on walks. A pocket guide helps with the first ones.",
    ),
    (
        "Can you rewrite 'The meeting was bad' in a friendlier tone?",
        "Of course: 'I think our meeting could have gone better, and I have some ideas for the "
        "next one.'",
    ),
)


class InContextResponder:
    """Answers of a base model without any tuning, by two answered examples in plain text.

    Args:
        llm: the base model.
        max_tokens: budget of an answer.
    """

    def __init__(self, llm: ChatClient, *, max_tokens: int = 1024) -> None:
        self._llm = llm
        self._params = GenerationParams(max_tokens=max_tokens, stop=("\n# Query",))

    def __call__(self, instructions: Sequence[str]) -> list[str]:
        shown = "".join(f"# Query\n{q}\n\n# Answer\n{a}\n\n" for q, a in _URIAL_EXAMPLES)
        prompts = [f"{shown}# Query\n{text}\n\n# Answer\n" for text in instructions]
        return [answer.text.strip() for answer in self._llm.generate(prompts, self._params)]
