"""Tasks through `evaluate` and `play`: what is asked, read, scored, kept and loaded."""

import json
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ritornello.common.chat import (
    CapabilityError,
    Completion,
    GenerationParams,
    Image,
    ScriptedClient,
    TransformersClient,
)
from ritornello.common.errors import UserError
from ritornello.common.evaluation import RunMismatchError, SampleError, evaluate, play
from ritornello.common.evaluation.baselines import (
    fixed_slot,
    frequency,
    oracle,
    saying,
    scripted,
    uniform,
)
from ritornello.common.evaluation.export import to_lm_eval_yaml
from ritornello.common.evaluation.permutation import Permuted, position_bias, reduced
from ritornello.common.models import tiny_causal_lm
from ritornello.experiments.space.experiment import Games, Questions
from ritornello.methods.space import (
    SpaceGameTask,
    SpaceQATask,
    load_official,
    make_task,
    rotation_report,
)
from ritornello.methods.space.drawing import png
from ritornello.methods.space.questions import QUESTION_TASKS

GREEDY = GenerationParams(max_tokens=64)


def write(sample, picked):
    return f'Let me think.\n{{"answer": {picked[0] + 1}}}'


def rotated(family="sadd", stimuli=5, **settings):
    return Permuted(SpaceQATask(family, stimuli=stimuli, difficulty="easy", **settings))


def accuracy(records, reading="ours"):
    return np.mean([record.scores[reading].value for record in records])


@pytest.mark.parametrize("family", sorted(QUESTION_TASKS))
def test_the_oracle_is_always_right(family):
    presentation = "image" if family == "wlt" else "text"
    task = rotated(family, 2, presentation=presentation)
    records = evaluate(task, scripted(task, oracle, write=write, name="oracle"))
    assert len(records) == 8
    assert accuracy(records) == accuracy(records, "official") == 1
    report = rotation_report(records)
    assert report.mean == report.circular == (1.0, 1.0)


def test_a_model_bound_to_a_slot_scores_a_quarter_and_nothing_in_all_rotations():
    task = rotated()
    records = evaluate(task, scripted(task, fixed_slot(2), write=write, name="third"))
    report = rotation_report(records)
    assert report.mean == (0.25,) * 5
    assert report.circular == (0.0,) * 5
    assert position_bias(records, 4).counts == (0, 0, 20, 0)
    # the first rotation alone would read anything
    vanilla = [record.scores["ours"].value for record in reduced(records, "first")]
    assert set(vanilla) <= {0.0, 1.0}


def test_chance_frequency_and_refusal():
    task = rotated(stimuli=100)
    records = evaluate(task, scripted(task, uniform(0), write=write, name="random"))
    assert abs(accuracy(records) - 0.25) < 4 * (0.25 * 0.75 / 400) ** 0.5
    plain = SpaceQATask("sadd", stimuli=40, difficulty="easy")
    slots = [sample.gold[0] for sample in plain.samples()]
    client = scripted(plain, frequency(plain.samples()), write=write, name="frequency")
    assert accuracy(evaluate(plain, client)) == max(map(slots.count, slots)) / 40
    refused = evaluate(plain, saying())
    assert accuracy(refused) == 0
    assert {record.answers["ours"].status for record in refused} == {"unparsed"}


def test_calibration_finds_content_behind_a_slot_preference():
    task = rotated(mode="likelihood")
    of = {}
    for sample in task.samples():
        of[repr(task.render(sample).asked.content())] = sample

    def score(prompt, continuation):
        slot = int(continuation) - 1
        known = slot == of[repr(prompt.content())].gold[0]
        return [5.0 * (slot == 1) + known - 10]  # slot 2 always wins

    client = ScriptedClient(lambda *_: "", score=score)
    report = rotation_report(evaluate(task, client))
    assert report.mean == (0.25,) * 5
    assert report.calibrated == (1.0,) * 5


def test_readings_differ_only_where_a_parser_does():
    task = SpaceQATask("sadd", stimuli=1, difficulty="easy")
    (sample,) = task.samples()
    gold = sample.gold[0] + 1
    read = {
        f'{{"answer": {gold}}}': (1, 1),
        f'{{"why": {{}}, "answer": {gold}}}': (1, 0),
        f'{{"choice": {gold}}}': (0, 1),
        f'{{"answer": {gold}.6}}': (0, 1),
        f'{{"answer": "{gold} "}}': (1, 1),
        '{"answer": [1, 2]}': (0, 0),
        '{"answer": 9}': (0, 0),
        "no": (0, 0),
    }
    for text, expected in read.items():
        (record,) = evaluate(task, ScriptedClient(lambda *_, text=text: text))
        scores = tuple(record.scores[name].value for name in ("ours", "official"))
        assert scores == expected, text


def test_four_rotations_share_all_but_their_options():
    task = rotated("ptt", 1)
    texts = [task.render(sample).asked.messages[0].text for sample in task.samples()]
    stems = {text.partition("Options:")[0] for text in texts}
    assert len(stems) == 1
    assert len(set(texts)) == 4


def test_prompts_can_be_replaced(tmp_path):
    (tmp_path / "ptt.txt").write_text("In other words.")
    task = SpaceQATask("ptt", stimuli=1, prompts_dir=tmp_path)
    assert task.render(task.samples()[0]).asked.messages[0].text.startswith("In other words.\n")
    kept = SpaceQATask("jlo", stimuli=1, prompts_dir=tmp_path)
    assert kept.render(kept.samples()[0]).asked.messages[0].text.startswith("Judge")
    missing = SpaceQATask("jlo", stimuli=1, prompts_dir=tmp_path / "none")
    with pytest.raises(ValueError, match="prompts_dir must be a folder"):
        missing.render(missing.samples()[0])


def bfs_player(prompt, params):
    """Plays from the text of the last observation alone."""
    seen = prompt.messages[-1].text.split("\n")
    rows = [line.split(",") for line in seen if set(line) <= set("01AG,") and "," in line]
    cells = {(r, c): s for r, row in enumerate(rows) for c, s in enumerate(row) if s != "0"}
    if "A" not in cells.values():
        return '{"action": "stop"}'
    start = next(p for p, s in cells.items() if s == "A")
    queue, first = deque([start]), {start: None}
    while queue:
        r, c = here = queue.popleft()
        if cells[here] == "G":
            return json.dumps({"action": first[here]})
        moves = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
        for name, (dr, dc) in moves.items():
            there = (r + dr, c + dc)
            if there in cells and there not in first:
                first[there] = first[here] or name
                queue.append(there)
    raise AssertionError("the goal cannot be reached")


def test_a_maze_is_solved_from_its_text_alone():
    task = SpaceGameTask("mct", episodes=3, difficulty="easy", params=GREEDY)
    records = play(task, ScriptedClient(bfs_player))
    assert [record.scores["ours"].value for record in records] == [1.0] * 3


def test_unreadable_actions_fall_back_to_up_and_are_counted():
    task = SpaceGameTask("mct", episodes=1, difficulty="easy", max_steps=6, params=GREEDY)
    (record,) = play(task, ScriptedClient(lambda *_: "hm"))
    value = record.answers["ours"].value
    assert value["actions"] == ["up"] * 6
    assert value["n_fallback"] == 6
    assert record.scores["ours"].value == 0


def test_the_published_parser_reads_compact_replies_on_maps_as_up():
    """Its pattern wants white space within the braces, so `down` becomes `up`."""
    world = {"game": "shortcut", "episodes": 1, "difficulty": "easy", "max_steps": 3}
    client = ScriptedClient(lambda *_: '{"action": "down"}')
    (ours,) = play(SpaceGameTask(**world, params=GREEDY), client)
    (compat,) = play(SpaceGameTask(**world, params=GREEDY, compat=True), client)
    assert ours.answers["ours"].value["actions"] == ["down"] * 3
    assert compat.answers["ours"].value["actions"] == ["up"] * 3
    assert ours.answers["ours"].value["n_differ"] == 3
    assert compat.answers["ours"].value["n_fallback"] == 3


@pytest.mark.parametrize(("reply", "fallbacks"), [('{"action": 9}', 4), ("hm", 4)])
def test_boxes_that_are_not_there_fall_back(reply, fallbacks):
    task = SpaceGameTask("cswm", episodes=1, difficulty="easy", max_steps=4, params=GREEDY)
    (record,) = play(task, ScriptedClient(lambda *_: reply))
    value = record.answers["ours"].value
    assert value["n_fallback"] == fallbacks == len(value["actions"])


@pytest.mark.parametrize("history", [0, 4, None])
def test_the_dialog_keeps_what_every_prompt_begins_with_and_the_last_turns(history):
    task = SpaceGameTask(
        "route_retracing",
        episodes=1,
        difficulty="easy",
        max_steps=5,
        params=GREEDY,
        history=history,
    )
    client = ScriptedClient(lambda *_: '{"action": "up"}')
    play(task, client)
    first, *turns = client.calls
    # system, the walk; then the model's comment on it
    assert [m.role for m in first.messages] == ["system", "user"]
    for number, call in enumerate(turns):
        roles = [message.role for message in call.messages]
        kept = 2 * number if history is None else min(2 * number, history)
        assert roles == [
            "system",
            "user",
            "assistant",
            *["user", "assistant"] * (kept // 2),
            "user",
        ]
        assert call.messages[:2] == first.messages
        # the line that asks for an action stands in the last turn only
        asking = [m for m in call.messages[3:] if "Which action" in m.text]
        assert asking == [call.messages[-1]]


def test_the_oldest_turns_are_dropped_from_a_dialog_that_grows_too_long():
    task = SpaceGameTask(
        "mct", episodes=1, difficulty="easy", max_steps=6, params=GREEDY, max_characters=2000
    )
    client = ScriptedClient(lambda *_: '{"action": "up"}')
    play(task, client)
    lengths = [sum(len(m.text) for m in call.messages) for call in client.calls]
    assert max(lengths) <= 2000 < lengths[0] * 6
    assert all(call.messages[0] == client.calls[0].messages[0] for call in client.calls)


@pytest.mark.parametrize("game", ["mct", "cswm", "shortcut"])
def test_pictures_are_shown_in_games(game):
    task = SpaceGameTask(
        game, "image", episodes=1, difficulty="easy", max_steps=2, params=GREEDY, comment=False
    )
    client = ScriptedClient(lambda *_: '{"action": 0}')
    play(task, client)
    assert all(isinstance(call.messages[-1].parts[0], Image) for call in client.calls)


def test_a_killed_run_goes_on_from_its_journal(tmp_path):
    task = rotated("satt", 3)
    whole = evaluate(task, scripted(task, oracle, write=write, name="model"))
    journal = tmp_path / "run.jsonl"
    calls = []

    def dying(prompt, params):
        calls.append(prompt)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return scripted(task, oracle, write=write, name="model").generate([prompt], params)[0]

    with pytest.raises(KeyboardInterrupt):
        evaluate(task, ScriptedClient(dying, model_id="model"), journal=journal, block=1)
    client = scripted(task, oracle, write=write, name="model")
    resumed = evaluate(task, client, journal=journal, block=1)
    assert len(client.calls) == 12 - 5
    assert [r.scores for r in resumed] == [r.scores for r in whole]
    with pytest.raises(RunMismatchError):
        evaluate(rotated("satt", 4), client, journal=journal)


def test_failed_requests_are_neither_right_nor_wrong():
    task = SpaceGameTask("mct", episodes=1, difficulty="easy", params=GREEDY)
    failing = ScriptedClient(lambda *_: Completion("", "error", error="gone"))
    (record,) = play(task, failing)
    assert record.answers["ours"].status == "error"
    assert not record.scores["ours"].counted


@pytest.fixture
def published(tmp_path):
    """A folder in the published form, with content of our own."""
    folder = tmp_path / "MRT_vision"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(np.zeros((4, 4, 3), dtype=np.uint8)).data)
    entries = [
        {"question": ["Which?", "IMAGE:a.png"], "answer": answer} for answer in (1, 2, 3, 4)
    ] + [{"question": "Text only?", "answer": 2}]
    (folder / "qas.json").write_text(json.dumps(entries))
    return tmp_path


def test_published_questions_load_and_score(published):
    samples = load_official(published, "MRT_vision")
    assert [sample.cluster for sample in samples] == ["MRT_vision-0"] * 4 + ["MRT_vision-1"]
    task = SpaceQATask("mrt", "image", data=samples)
    asked = task.render(samples[0]).asked.messages[0]
    assert asked.has_images
    assert asked.text == "Which?"
    records = evaluate(task, ScriptedClient(lambda *_: '{"answer": 2}'))
    assert [record.scores["official"].value for record in records] == [0, 1, 0, 0, 1]
    assert [record.scores["ours"].value for record in records] == [0, 1, 0, 0, 1]
    assert len(load_official(published, "MRT_vision", limit=2)) == 2
    # the folder itself, or all that a folder holds
    assert load_official(published / "MRT_vision") == load_official(published) == samples


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"question": "x"}, "entry 5: needs the fields question and answer"),
        ({"question": 3, "answer": 1}, "question must be a text or a list"),
        ({"question": ["IMAGE:b.png"], "answer": 1}, "there is no file"),
        ({"question": ["IMAGE:qas.json"], "answer": 1}, "pictures must be"),
        ({"question": "x", "answer": None}, "answer must be a number or a text"),
        ("x", "needs the fields"),
    ],
)
def test_damaged_published_questions_are_named(published, entry, message):
    file = published / "MRT_vision" / "qas.json"
    file.write_text(json.dumps([*json.loads(file.read_text()), entry]))
    with pytest.raises(SampleError, match=message):
        load_official(published, "MRT_vision")


def test_absent_published_data_say_how_to_get_them(published):
    with pytest.raises(ValueError, match=r"folders with questions: \['MRT_vision'\].*unpack it"):
        load_official(published, "MRT_text")
    with pytest.raises(ValueError, match="there is no folder"):
        load_official(published / "none", "MRT_text")
    (published / "MRT_vision" / "qas.json").write_text("{")
    with pytest.raises(SampleError, match="is not JSON"):
        load_official(published, "MRT_vision")


def test_absent_folders_are_told_before_any_cell(published, tmp_path):
    study = partial(Questions, "text", 1, 1, "medium")
    study(data=str(published)).prepare()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="folders with questions: none"):
        study(data=str(tmp_path / "empty")).prepare()
    for part in (study, partial(Games, "text", 1, "medium")):
        with pytest.raises(UserError, match="prompts_dir must be a folder"):
            part(prompts_dir=str(tmp_path / "absent")).prepare()


def test_tasks_go_by_their_published_names_too():
    assert make_task("DirectionEstimation", n=2) == make_task("direction", n=2)
    assert SpaceQATask("MRT").name == "space/mrt/text"
    assert SpaceGameTask("RouteRetracing").name == "space/route_retracing/text"


def test_generated_and_published_samples_have_one_type(published):
    (generated,) = make_task("mrt", n=1)
    assert type(generated) is type(load_official(published, "MRT_vision")[0])


def test_pictures_are_refused_by_a_text_model_before_it_is_asked():
    model = tiny_causal_lm("llama", layers=1, hidden=32)
    client = TransformersClient(model, SimpleNamespace(chat_template="x"))
    task = SpaceQATask("wlt", "image", stimuli=1, difficulty="easy")
    with pytest.raises(CapabilityError, match=r"does not offer.*images"):
        evaluate(task, client)


def test_text_questions_can_be_taken_to_lm_evaluation_harness(tmp_path):
    path = to_lm_eval_yaml(SpaceQATask("ptt", stimuli=2, mode="likelihood"), tmp_path)
    rows = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["choices"] for row in rows] == [[" 1", " 2", " 3", " 4"]] * 2
    assert [row["gold"] for row in rows] == [s.gold[0] for s in make_task("ptt", n=2)]
