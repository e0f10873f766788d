"""The decoding grid: its coordinates reach the model, its ratings and distances the table."""

import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from ritornello.common.chat import ScriptedClient
from ritornello.common.errors import UserError
from ritornello.common.jsonl import read_jsonl
from ritornello.common.reporting import Results
from ritornello.common.runs import Cell, CellContext
from ritornello.experiments.magpie import sources
from ritornello.experiments.magpie.experiment import (
    DecodingStudy,
    PipelineStudy,
    TemplateStudy,
)
from ritornello.experiments.magpie.figures import figures
from ritornello.methods.magpie import MagpieConfig

ARM = MagpieConfig(
    n=4, response_tokens=1, family=None, tags=("quality", "difficulty"), filter="none"
)


class Digits:
    """Texts to the direction of their last digit."""

    def encode(self, sentences):
        return np.eye(10, dtype=np.float32)[[int(text[-1]) for text in sentences]]


def reply(prompt, params):
    """Queries 0..3 that say how they were drawn; a judge who likes cool ones and rates no 3."""
    if prompt.text is not None:
        if not params.temperature:
            return "a"
        return f"Why {params.temperature:g} {params.top_p:g} {prompt.sample}<|im_end|>"
    asked = prompt.messages[-1].text.rpartition("<query>\n")[2]
    if "3\n</query>" in asked:
        return "no JSON"
    label = "good" if "Why 1 " in asked else "poor"
    return f'"intent": "x", "knowledge": "x", "difficulty": "hard", "input_quality": "{label}"}}'


def study_of(kind, chatml, **settings):
    study = kind(
        model=None, tokenizer=lambda: chatml, encoder=Digits, engine="transformers", **settings
    )
    study.llm = ScriptedClient(reply, score=lambda prompt, text: (-1.0,))
    return study


def context_in(folder):
    context = CellContext(folder / "scratch", folder / "artifacts")
    context.scratch.mkdir(parents=True), context.artifacts.mkdir()
    return context


def test_every_point_of_the_grid_is_sampled_and_rated(chatml, tmp_path):
    records = []
    for temperature in (1.0, 1.2):
        for top_p in (1.0, 0.99):
            place = {"temperature": temperature, "top_p": top_p}
            cell = Cell("decoding", "magpie", 0, place)
            context = context_in(tmp_path / cell.key)
            found = list(study_of(DecodingStudy, chatml).measure(ARM, cell, context))
            values = {m.metric: m.value for m in found}
            assert values["kept_share"] == 1.0
            assert values["input_quality"] == (4.0 if temperature == 1.0 else 2.0)
            assert values["difficulty"] == 4.0
            assert values["min_neighbor_distance"] == pytest.approx(2.0)
            assert {m.metric: len(m.samples or ()) for m in found} == {
                "kept_share": 0,
                "input_quality": 3,  # one query has no rating
                "difficulty": 3,
                "min_neighbor_distance": 4,
            }
            rows = read_jsonl(context.artifacts / "data" / "final.jsonl")
            assert rows[0]["instruction"] == f"Why {temperature:g} {top_p:g} 0"
            records.append({"cell": asdict(cell), "measurements": [m.as_record() for m in found]})
    (drawn,) = figures(Results.from_records(records, tmp_path))
    assert drawn.name == "decoding_grid"
    assert [len(axes.lines) for axes in drawn.figure.axes] == [2, 2, 2]


def test_every_seed_of_the_pipeline_draws_queries_of_its_own(chatml, tmp_path):
    study = study_of(
        PipelineStudy, chatml, sft=None, dpo=None, held_out=0.5, student=None, reward=None
    )
    ids = set()
    for seed in (0, 1):
        context = context_in(tmp_path / str(seed))
        list(study.measure(replace(ARM, seed=9), Cell("pipeline", "magpie", seed), context))
        ids |= {row["id"] for row in read_jsonl(context.artifacts / "data" / "final.jsonl")}
    assert len(ids) == 8


def test_a_missing_engine_is_told_before_any_cell(chatml, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    study = study_of(TemplateStudy, chatml, samples=1, max_new_tokens=1)
    study.prepare()
    study.engine = "vllm"
    with pytest.raises(UserError, match="pip install vllm"):
        study.prepare()


def test_parts_share_one_engine(monkeypatch):
    sources.shared_vllm.cache_clear()
    monkeypatch.setattr(sources, "load_vllm", lambda model, **options: object())
    first = sources.shared_vllm("a", gpu_memory_utilization=0.4)
    assert sources.shared_vllm("a", gpu_memory_utilization=0.4) is first
    assert sources.shared_vllm("b", gpu_memory_utilization=0.4) is not first
    sources.shared_vllm.cache_clear()
