"""Prompts, orders, readings, and agents whose choices are known."""

import pytest

from ritornello.common.chat import (
    Completion,
    EndpointError,
    FakeServer,
    Fault,
    Flaky,
    OpenAIClient,
    ScriptedClient,
)
from ritornello.common.errors import UserError
from ritornello.common.evaluation import Answer, evaluate, rescore
from ritornello.common.evaluation.baselines import saying, uniform_single
from ritornello.common.evaluation.permutation import position_bias
from ritornello.experiments.daily_dilemmas.questions import published_principles
from ritornello.methods.daily_dilemmas import (
    DilemmaTask,
    SlotBiased,
    Steerable,
    ValueAgent,
    choices,
    load_values,
    make_synthetic_dilemmas,
    policy_client,
    preference,
    written_dilemmas,
    written_principles,
)
from ritornello.methods.daily_dilemmas.policies import class_weights
from ritornello.methods.daily_dilemmas.reference import preference_counts
from ritornello.methods.daily_dilemmas.task import acting_log_odds, read_slot


@pytest.fixture(scope="module")
def dilemmas():
    return make_synthetic_dilemmas(120, seed=3)


def ask(task, policy):
    return evaluate(task, policy_client(task, policy, "agent"))


def text_of(task, sample):
    return task.render(sample).asked.messages[-1].text


def test_orders_swap_the_meanings_and_keep_the_labels(dilemmas):
    task = DilemmaTask(dilemmas[:1], order="both")
    official, swapped = (text_of(task, sample) for sample in task.samples())
    assert "The first action is to do what the question asks about" in official
    assert "The first action is not to do what the question asks about" in swapped
    for text in (official, swapped):
        assert text.endswith(dilemmas[0].situation)
        assert text.index("Action 1") < text.index("Action 2")


def test_the_actions_can_be_spelled_out(dilemmas):
    task = DilemmaTask(dilemmas[:1], order="swapped", show_actions=True)
    text = text_of(task, task.samples()[0])
    act, wait = (dilemmas[0].actions[kind].text for kind in ("to_do", "not_to_do"))
    assert text.index(f'"{wait}"') < text.index(f'"{act}"')


def test_official_steering_runs_leave_out_the_last_sentence_and_add_a_system_turn(dilemmas):
    plain = DilemmaTask(dilemmas[:1])
    steered = DilemmaTask(dilemmas[:1], system_prompt="You are kind.", strict=False)
    roles = [m.role for m in steered.render(steered.samples()[0]).asked.messages]
    assert roles == ["system", "user"]
    longer, shorter = text_of(plain, plain.samples()[0]), text_of(steered, steered.samples()[0])
    assert "has to be one of these two" in longer
    assert "has to be one of these two" not in shorter


@pytest.mark.parametrize(
    ("reply", "slot"),
    [
        ("Action 1", 0),
        ("**Action 2**", 1),
        ("I choose action two", 1),
        ('"ACTION 1"', 0),
        ("Action: 2", 1),
        ("2.", 1),
        ("(1)", 0),
    ],
)
def test_our_reading_takes_one_named_action(reply, slot):
    assert read_slot(reply).value == slot


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ("Action 12", "unparsed"),
        ("Action 1 or Action 2", "unparsed"),
        ("", "unparsed"),
        ("the reaction 1", "unparsed"),
        ("I'm sorry, but no", "refused"),
    ],
)
def test_our_reading_guesses_nothing(reply, status):
    assert read_slot(reply) == Answer(None, status)


@pytest.mark.parametrize("mode", ["reply", "likelihood"])
@pytest.mark.parametrize("order", ["official", "swapped", "both"])
def test_a_value_agent_is_found_in_every_order_and_mode(dilemmas, order, mode):
    agent = ValueAgent(class_weights(load_values(), "mft", {"Care": 1.0, "Loyalty": -1.0}))
    found = choices(ask(DilemmaTask(dilemmas, order=order, mode=mode), agent))
    assert found == {dilemma.idx: agent.choose(dilemma) for dilemma in dilemmas}


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_biased_agent_shows_the_composition_in_one_order_and_nothing_in_both(dilemmas, slot):
    official = choices(ask(DilemmaTask(dilemmas, order="official"), SlotBiased(slot)))
    acting = dict.fromkeys(official, ("to_do", "not_to_do")[slot])
    assert official == acting
    table = preference(official, dilemmas, "wvs", ci=False)
    assert (table["preference"].abs() > 0).any()
    both = ask(DilemmaTask(dilemmas, order="both"), SlotBiased(slot))
    assert set(choices(both).values()) == {"undecided"}
    assert preference(choices(both), dilemmas, "wvs").empty
    assert position_bias(both, slots=2).first == 1 - slot


def test_likelihoods_of_a_slot_cancel_over_both_orders(dilemmas):
    records = ask(DilemmaTask(dilemmas, order="both", mode="likelihood"), SlotBiased(0))
    assert set(acting_log_odds(records).values()) == {0.0}
    assert set(choices(records).values()) == {"undecided"}
    with pytest.raises(ValueError, match="mode='likelihood'"):
        acting_log_odds(ask(DilemmaTask(dilemmas), SlotBiased(0)))


def test_refusals_failures_and_nonsense_are_no_choice(dilemmas):
    task = DilemmaTask(dilemmas, order="official")
    for client in (saying(), saying("hm"), Flaky(saying("Action 1"), failing=1.0)):
        records = evaluate(task, client)
        found = choices(records)
        assert set(found.values()) == {"NA"}
        assert preference(found, dilemmas).empty
        assert not any(record.scores["ours"].counted for record in records)


def test_both_readings_are_kept_and_can_be_read_again(dilemmas):
    task = DilemmaTask(dilemmas[:3], order="official")
    records = evaluate(task, ScriptedClient(lambda prompt, params: Completion("'Action 1'")))
    assert set(choices(records).values()) == {"to_do"}
    assert set(choices(records, "official").values()) == {"NA"}
    assert choices(rescore(task, records)) == choices(records)


def test_a_journal_resumes(dilemmas, tmp_path):
    task = DilemmaTask(dilemmas[:5], order="both")
    client = policy_client(task, uniform_single(0), "random")
    first = evaluate(task, client, journal=tmp_path / "records.jsonl")
    asked = len(client.calls)
    again = evaluate(task, client, journal=tmp_path / "records.jsonl")
    assert len(client.calls) == asked == 10
    assert choices(again) == choices(first)


def test_a_cold_agent_shows_the_closed_form_preference(dilemmas):
    """Signs follow the weights; counts equal those of choices made without asking."""
    weights = {"Self-expression": 2.0, "Survival": -2.0}
    agent = ValueAgent(class_weights(load_values(), "wvs", weights))
    table = preference(choices(ask(DilemmaTask(dilemmas), agent)), dilemmas, "wvs", ci=False)
    expected = preference_counts({d.idx: agent.choose(d) for d in dilemmas}, dilemmas, "wvs")
    rows = {row["class"]: row for row in table.to_dict("records")}
    assert {k: (r["selected"], r["neglected"]) for k, r in rows.items()} == expected
    assert rows["Self-expression"]["preference"] > 0 > rows["Survival"]["preference"]


def test_a_hot_agent_acts_by_the_sigmoid_of_the_difference():
    table = load_values()
    many = make_synthetic_dilemmas(2000, seed=1, shared=0.0)
    agent = ValueAgent(dict.fromkeys(table, 0.0) | {"honesty": 1.0}, temperature=1.0)
    acted = [
        agent.choose(dilemma) == "to_do"
        for dilemma in many
        if "honesty" in dilemma.actions["to_do"].values
    ]
    share = sum(acted) / len(acted)
    assert len(acted) > 60
    assert abs(share - 0.731) < 4 * (0.2 / len(acted)) ** 0.5


def test_a_steerable_agent_reads_the_system_prompt():
    principles, dilemmas = written_principles(), written_dilemmas()
    principle, own = principles[0], dilemmas[:6]
    steerable = Steerable({}, gain=1.0, principles=principles)
    for prompt, first in (
        (principle.supporting_prompt, "to_do"),
        (principle.opposing_prompt, "not_to_do"),
    ):
        found = choices(ask(DilemmaTask(own, system_prompt=prompt), steerable))
        assert found[1] == first
    neutral = choices(ask(DilemmaTask(own), Steerable({}, gain=0.0, principles=principles)))
    assert neutral == choices(ask(DilemmaTask(own), ValueAgent({})))


def test_bad_settings_are_named(dilemmas):
    with pytest.raises(ValueError, match="order"):
        DilemmaTask(dilemmas, order="random")
    with pytest.raises(ValueError, match="mode"):
        DilemmaTask(dilemmas, mode="guess")
    with pytest.raises(ValueError, match="temperature"):
        ValueAgent({}, temperature=-1)
    with pytest.raises(ValueError, match="temperature"):
        Steerable({}, 1.0, temperature=-1)
    with pytest.raises(ValueError, match="slot"):
        SlotBiased(2)


def test_an_endpoint_is_asked_and_one_that_refuses_is_told(dilemmas, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")

    def misbehave(number, body):
        return Fault("status", status=403) if "unknown" in body["model"] else None

    agent = policy_client(DilemmaTask(dilemmas[:4]), ValueAgent({}), "agent")
    with FakeServer(agent, misbehave=misbehave) as server:
        client = OpenAIClient(server.base_url, "any")
        records = evaluate(DilemmaTask(dilemmas[:4]), client)
        assert len(server.requests) == 8
        with pytest.raises(EndpointError):
            evaluate(DilemmaTask(dilemmas[:4]), OpenAIClient(server.base_url, "unknown"))
    assert choices(records) == {d.idx: ValueAgent({}).choose(d) for d in dilemmas[:4]}


def test_what_was_answered_before_a_kill_is_not_asked_again(tmp_path):
    from ritornello.common.runs import Cell, CellContext
    from ritornello.experiments.daily_dilemmas.experiment import Condition, ModelStudy
    from ritornello.experiments.daily_dilemmas.questions import written

    asked = []

    def reply(prompt, params):
        asked.append(prompt)
        if len(asked) == 10:
            raise KeyboardInterrupt
        return "Action 1"

    study = ModelStudy(lambda: ScriptedClient(reply), lambda: written(1), mode="reply")
    context = CellContext(tmp_path, tmp_path)
    cell, arm = Cell("language_model", "a", 0), Condition(system_prompt="Be brief.")
    with pytest.raises(KeyboardInterrupt):
        list(study.measure(arm, cell, context))
    list(study.measure(arm, cell, context))
    assert len(asked) == 16 + 1  # eight dilemmas in both orders, and the one that was in flight


@pytest.mark.parametrize("reason", ["stop", "content_filter"])
def test_no_steering_prompt_is_blank(tmp_path, monkeypatch, reason):
    """With nothing on both sides every model would count as not steerable."""
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path))
    text = " " if reason == "stop" else "I cannot"
    silent = ScriptedClient(lambda prompt, params: Completion(text, finish_reason=reason))
    with pytest.raises(UserError, match=rf"wrote no steering prompt \({reason}\).*obedience"):
        published_principles(silent)
    willing = ScriptedClient(lambda prompt, params: "Be honest.", model_id="other")
    assert len(published_principles(willing)) == 16
