"""Both steps: what is asked, what is kept, and that nothing but the index decides a query."""

import pytest

from ritornello.common.chat import Completion, ScriptedClient, TransformersClient
from ritornello.methods.magpie import ChatTemplateParts, MagpieGenerator, SelfInstructGenerator
from ritornello.methods.magpie.baselines import rouge_l
from ritornello.methods.magpie.generator import MULTI_TURN_SYSTEM


@pytest.fixture
def parts(chatml):
    return ChatTemplateParts.from_tokenizer(chatml)


@pytest.fixture(scope="module")
def tiny(chatml):
    from ritornello.common.models import tiny_causal_lm

    model = tiny_causal_lm(vocabulary=258, width=32, hidden=64, seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(6.0) if parameter.dim() > 1 else None
    return TransformersClient(model, chatml, max_batch_rows=8)


def test_step_one_sees_the_pre_query_template_and_nothing_else(parts):
    llm = ScriptedClient(lambda prompt, params: f"query {prompt.sample}")
    drawn = MagpieGenerator(llm, parts).instructions(3, first=5)
    assert {prompt.text for prompt in llm.calls} == {parts.pre_query}
    assert [query.text for query in drawn] == ["query 5", "query 6", "query 7"]
    assert [query.index for query in drawn] == [5, 6, 7]


def test_queries_depend_on_their_index_alone(parts, tiny):
    """Drawn in one call, in parts, or one at a time: the same texts."""
    generator = MagpieGenerator(tiny, parts, max_new_tokens=12, seed=4)
    whole = [query.text for query in generator.instructions(10)]
    parts_of = [*generator.instructions(3), *generator.instructions(7, first=3)]
    assert whole == [query.text for query in parts_of]
    assert generator.instructions(1, first=6)[0].text == whole[6]
    assert len(set(whole)) > 5
    other = MagpieGenerator(tiny, parts, max_new_tokens=12, seed=5).instructions(10)
    assert whole != [query.text for query in other]


def test_run_on_text_is_cut_at_the_newline_and_at_the_assistants_name(parts):
    llm = ScriptedClient(lambda prompt, params: " How are you?\nassistant\nFine.")
    cut = MagpieGenerator(llm, parts).instructions(1)[0]
    assert (cut.text, cut.natural_stop) == ("How are you?", False)
    longer = MagpieGenerator(llm, parts, stop_at_newline=False).instructions(1)[0]
    assert longer.text == "How are you?"
    whole = MagpieGenerator(llm, parts, stop_at_newline=False, stop_words=()).instructions(1)[0]
    assert whole.text.endswith("Fine.")


def test_a_natural_stop_is_a_turn_end_by_the_model_itself(parts):
    replies = [
        Completion("a", "stop", stop_reason=parts.stop_ids[0]),
        Completion("b", "stop", stop_reason="\n"),
        Completion("c", "length"),
    ]
    llm = ScriptedClient(lambda prompt, params: replies[prompt.sample])
    drawn = MagpieGenerator(llm, parts).instructions(3)
    assert [query.natural_stop for query in drawn] == [True, False, False]


def test_answers_are_greedy_and_never_sampled_with_step_ones_temperature(parts):
    seen = []
    llm = ScriptedClient(lambda prompt, params: seen.append((prompt.text, params)) or "answer")
    generator = MagpieGenerator(llm, parts, temperature=1.2)
    assert generator.responses(["Why?"])[0].text == "answer"
    assert seen[0][0] == parts.with_query("Why?")
    assert seen[0][1].temperature == 0
    generator.responses(["Why?"], greedy=False)
    assert seen[1][1].temperature == 1.2


def test_multi_turn_hides_its_system_message_from_answers_and_rows(parts):
    llm = ScriptedClient(lambda prompt, params: "again" if params.temperature else "reply")
    rows = [{"instruction": "q1", "response": "r1"}]
    extended = MagpieGenerator(llm, parts).multi_turn(rows, turns=3)[0]
    assert extended == {
        "instruction": "q1",
        "response": "r1",
        "instruction_2": "again",
        "response_2": "reply",
        "instruction_3": "again",
        "response_3": "reply",
    }
    asked, answered = [p.text for p in llm.calls[::2]], [p.text for p in llm.calls[1::2]]
    assert all(MULTI_TURN_SYSTEM in text for text in asked)
    assert all(MULTI_TURN_SYSTEM not in text for text in answered)
    order = [asked[1].index(text) for text in ("q1", "r1", "again", "reply")]
    assert order == sorted(order)
    assert asked[1].endswith("<|im_start|>user\n")
    assert answered[0].endswith("<|im_start|>assistant\n")


def test_a_conversation_does_not_depend_on_the_rows_beside_it(parts):
    llm = ScriptedClient(lambda prompt, params: f"{prompt.sample}" if params.temperature else "a")
    rows = [{"index": i, "instruction": "q", "response": "r"} for i in range(4)]
    generator = MagpieGenerator(llm, parts)
    assert generator.multi_turn(rows[2:]) == generator.multi_turn(rows)[2:]


@pytest.mark.parametrize("query", ["", Completion("cut of", "length")], ids=["empty", "cut off"])
def test_a_conversation_ends_where_the_next_query_is_not_whole(parts, query):
    llm = ScriptedClient(lambda prompt, params: query if params.temperature else "reply")
    rows = [{"instruction": "q1", "response": "r1"}]
    assert MagpieGenerator(llm, parts).multi_turn(rows, turns=4) == rows


def test_bad_settings_are_named(parts):
    llm = ScriptedClient(lambda prompt, params: "")
    with pytest.raises(ValueError, match="temperature"):
        MagpieGenerator(llm, parts, temperature=0)
    with pytest.raises(ValueError, match="not both"):
        MagpieGenerator(llm, parts, first_token_temperature=1.2, banned_first_ids=[1])
    with pytest.raises(ValueError, match="n must be"):
        MagpieGenerator(llm, parts).instructions(0)
    with pytest.raises(ValueError, match="turns"):
        MagpieGenerator(llm, parts).multi_turn([], turns=1)


def test_self_instruct_shows_three_tasks_and_takes_the_fourth():
    llm = ScriptedClient(lambda prompt, params: f" Task {prompt.sample}\n5. Another")
    generator = SelfInstructGenerator(llm, seed=1)
    drawn = generator.instructions(4)
    assert [query.text for query in drawn] == [f"Task {i}" for i in range(4)]
    shown = llm.calls[0].messages[0].text
    assert [line[:2] for line in shown.splitlines()[1:]] == ["1.", "2.", "3."]
    assert llm.calls[0].prefill == "4."
    assert len({call.messages for call in llm.calls}) > 1, "examples are drawn anew"


def test_self_instruct_keeps_what_is_unlike_the_pool():
    llm = ScriptedClient(lambda prompt, params: " Name a red flower that grows in spring.")
    generator = SelfInstructGenerator(llm)
    assert len(generator.novel(generator.instructions(3))) == 1


def test_rouge_l_on_a_hand_made_case():
    # the longest common subsequence of "a b c d" and "a c e" is "a c": 2 * 2 / (4 + 3)
    assert rouge_l("A b c d", "a c e") == pytest.approx(4 / 7)
    assert rouge_l("", "a") == 0.0


def test_an_endpoint_that_names_no_stop_reason_is_not_called_endless(parts):
    """vLLM's server names stop strings, but not the model's own end token."""
    replies = iter(
        [Completion("How?"), Completion("How?", stop_reason="\n"), Completion("How", "length")]
    )
    client = ScriptedClient(lambda prompt, params: next(replies))
    drawn = MagpieGenerator(client, parts).instructions(3)
    assert [query.natural_stop for query in drawn] == [True, False, False]
