"""The published files: read, checked row by row, never evaluated."""

import csv

import pytest

from ritornello.common.errors import UserError
from ritornello.common.evaluation import SampleError
from ritornello.methods.daily_dilemmas import (
    THEORIES,
    load_daily_dilemmas,
    load_situations,
    load_values,
    make_synthetic_dilemmas,
)
from ritornello.methods.daily_dilemmas.values import ValueTable, parse_list


def rows_of(dilemmas):
    rows = []
    for dilemma in dilemmas:
        for kind, action in dilemma.actions.items():
            row = {
                "idx": dilemma.idx,
                "dilemma_situation": dilemma.situation,
                "action_type": kind,
                "action": action.text,
                "negative_consequence": "",
                "values_names": str(list(action.values)),
                "topic_group": dilemma.topic,
            }
            for theory in THEORIES:
                row[theory] = str(list(action.classes[theory])).replace("None", "nan")
            rows.append(row)
    return rows


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def dilemmas():
    return make_synthetic_dilemmas(12, seed=0)


@pytest.fixture
def rows(dilemmas):
    return rows_of(dilemmas)


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "folder"])
def test_every_format_gives_the_same_dilemmas(form, dilemmas, rows, tmp_path):
    import pandas as pd

    path = tmp_path / f"Dilemmas_with_values_aggregated.{form}"
    if form == "folder":
        (tmp_path / "hub").mkdir()
        (tmp_path / "hub" / "a.csv").write_text("value,WVS\nhope,nan\n")
        write(tmp_path / "hub" / "b.csv", rows)
        path = tmp_path / "hub"
    elif form == "csv":
        write(path, rows)
    elif form == "parquet":
        lists = {c: [parse_list(row[c]) for row in rows] for c in ("values_names", *THEORIES)}
        pd.DataFrame(rows).assign(**lists).to_parquet(path)
    else:
        pd.DataFrame(rows).to_json(path, orient="records", lines=True)
    assert load_daily_dilemmas(path) == dilemmas
    assert load_situations(path) == {d.idx: d.situation for d in dilemmas}


def test_classes_come_from_the_table_where_the_file_has_none(dilemmas, rows, tmp_path):
    short = [{k: v for k, v in row.items() if k not in THEORIES} for row in rows]
    assert load_daily_dilemmas(write(tmp_path / "d.csv", short)) == dilemmas


def test_numbers_may_have_gaps_and_rows_any_order(rows, tmp_path):
    for row in rows:
        row["idx"] = 40_000 - 7 * row["idx"]
    loaded = load_daily_dilemmas(write(tmp_path / "d.csv", rows[::-1]))
    assert [d.idx for d in loaded] == [40_000 - 7 * n for n in range(12, 0, -1)]


def test_repeated_values_are_dropped_with_their_classes(rows, tmp_path):
    rows[0]["values_names"] = "['honesty', \"respect for others' privacy\", 'honesty']"
    table = load_values()
    for theory in THEORIES:
        classes = [table[v][theory] for v in ("honesty", "respect for others' privacy", "honesty")]
        rows[0][theory] = str(classes).replace("None", "nan")
    action = load_daily_dilemmas(write(tmp_path / "d.csv", rows))[0].actions["to_do"]
    assert action.values == ("honesty", "respect for others' privacy")
    assert action.classes["virtue"] == ("Truthfulness", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_type": "maybe"}, "row 3.*action_type must be one of"),
        ({"action_type": "to_do"}, "second row of type to_do"),
        ({"idx": "x"}, "idx must be an integer"),
        ({"values_names": "['honestly']"}, "did you mean 'honesty'"),
        ({"values_names": "honesty"}, "not a list"),
        ({"values_names": "[__import__('os')]"}, "strings and nan only"),
        ({"wvs": "[nan, nan, nan, nan, nan, nan]"}, "wvs must have as many entries"),
    ],
)
def test_a_broken_row_is_named(change, message, rows, tmp_path):
    rows[3] |= change
    with pytest.raises(SampleError, match=message):
        load_daily_dilemmas(write(tmp_path / "d.csv", rows))


def test_a_missing_action_is_named(rows, tmp_path):
    with pytest.raises(SampleError, match="dilemma 12 needs exactly one action of each type"):
        load_daily_dilemmas(write(tmp_path / "d.csv", rows[:-1]))


def test_missing_data_are_said_at_once(tmp_path):
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        load_daily_dilemmas()
    with pytest.raises(UserError, match="no file"):
        load_daily_dilemmas(tmp_path / "absent.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="lacks"):
        load_daily_dilemmas(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="cannot be read"):
        load_daily_dilemmas(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    "text",
    ["[a]", "{'a': 1}", "[1 + 1]", "[f()]", "[", "'a'", "['a', 2]", f"['a'{' + a' * 9000}]"],
    ids=len,
)
def test_only_lists_of_strings_and_nan_are_read(text):
    with pytest.raises(ValueError, match="list"):
        parse_list(text)


def test_lists_are_read_with_quotes_and_nan():
    assert parse_list("""[nan, 'a', "b's", None]""") == [None, "a", "b's", None]


def test_a_value_table_of_ones_own(tmp_path):
    file = tmp_path / "values.csv"
    # with a byte order mark, as spreadsheets write it
    file.write_text("\ufeffvalue,WVS,MFT,Virtue,Emotion,Maslow\nhope,Survival,,nan,joy,\n")
    table = load_values(file)
    assert dict(table["hope"]) == {
        "wvs": "Survival", "mft": None, "virtue": None, "emotion": "joy", "maslow": None,
    }  # fmt: skip
    with pytest.raises(UserError, match="no file"):
        load_values(tmp_path / "absent.csv")
    file.write_text("value,WVS\nhope,Survival\n")
    with pytest.raises(UserError, match="lacks the columns"):
        load_values(file)
    with pytest.raises(SampleError, match="wvs must be one of"):
        ValueTable({"hope": {"wvs": "Modern"}})
    with pytest.raises(SampleError, match="none of the 301 values; did you mean"):
        load_values()["honestly"]


def test_classes_cover_the_values_as_published():
    table = load_values()
    assert len(table.in_class("wvs", "Self-expression")) == 80
    assert len(table.in_class("virtue", "Truthfulness")) == 14
    assert table.in_class("emotion", "aggressiveness")
    with pytest.raises(ValueError, match="must be one of"):
        table.in_class("freud", "id")


def test_the_real_rows_load(shared_data):
    folder = shared_data / "values" / "daily_dilemmas"
    if not folder.is_dir():
        pytest.skip("DailyDilemmas is not among the test data")
    dilemmas = load_daily_dilemmas(folder / "dilemmas_with_detail_by_action_test.csv")
    assert [d.idx for d in dilemmas] == [55, 107, 176, 257]
    assert dilemmas[0].topic == "workplace"
    assert dilemmas[0].actions["to_do"].values[0] == "honesty"
    table = load_values()
    for dilemma in dilemmas:
        for action in dilemma.actions.values():
            for theory in THEORIES:
                assert action.classes[theory] == tuple(table[v][theory] for v in action.values)


def test_the_real_situations_and_values(shared_data):
    folder = shared_data / "values" / "daily_dilemmas"
    if not folder.is_dir():
        pytest.skip("DailyDilemmas is not among the test data")
    situations = load_situations(folder / "dilemma.csv")
    words = [len(text.split()) for text in situations.values()]
    assert len(situations) == 1360
    assert round(sum(words) / len(words)) == 54
    assert max(words) == 83
    assert dict(load_values(folder / "values.csv")) == dict(load_values())
