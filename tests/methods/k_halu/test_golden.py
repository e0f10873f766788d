"""Equality with the official code on the reference values."""

import json

import pytest

from ritornello.common.chat import ContinuationScores
from ritornello.methods.k_halu import (
    KHaluLogLikelihood,
    multilabel_macro,
    parse_binary_list,
    sample_from_row,
    select_top_k,
    set_scores,
)
from ritornello.methods.k_halu.binary_list import binary
from ritornello.methods.k_halu.prompts import likelihood_context, numbered
from ritornello.methods.k_halu.published import published_counts, published_items


@pytest.fixture(scope="module")
def read(golden):
    return lambda name: json.loads((golden / "k_halu" / name).read_text(encoding="utf-8"))


def test_lists_are_read_as_the_official_parser_reads_them(read):
    cases = read("exact_match_parse.json")
    assert len(cases) == 27
    for case in cases:
        found = parse_binary_list(case["prediction"], 5, True)
        assert float(found == binary(case["label"])) == case["acc"], case["prediction"]


def test_options_are_ranked_as_by_the_official_code(read):
    reference = read("loglikelihood_topk.json")
    gold, picked = [], []
    assert len(reference["cases"]) == 40
    for case in reference["cases"]:
        lengths = [len(choice) for choice in case["choices"]]
        found = select_top_k(case["loglikelihoods"], lengths, len(case["label"]))
        assert list(found) == case["predicted_normalised"]
        assert set_scores(case["label"], found)["set_match"] == case["acc_norm"]
        gold.append(case["label"])
        picked.append(found)
    macro = multilabel_macro(gold, picked)
    whole = reference["aggregate"]
    for name in ("precision", "recall", "f1"):
        assert macro[name] == pytest.approx(whole[f"{name}_macro"], abs=1e-12)
    match = [set_scores(g, p)["set_match"] for g, p in zip(gold, picked, strict=True)]
    assert sum(match) / len(match) == pytest.approx(whole["acc_norm"], abs=1e-12)


def test_macro_scores_are_those_of_scikit_learn(read):
    batches = read("multilabel_macro.json")
    assert len(batches) == 6
    for batch in batches:
        macro = multilabel_macro(batch["gold"], batch["pred"])
        for name in ("precision", "recall", "f1"):
            assert macro[name] == pytest.approx(batch[f"{name}_macro"], abs=1e-12)


def test_the_context_and_the_options_are_laid_out_as_published(read):
    reference = read("context.json")
    sample = sample_from_row(reference["doc"], 0)
    assert likelihood_context(sample) == reference["context"]
    assert numbered(sample) == reference["choices"]
    assert list(sample.gold) == reference["gold"]
    query = KHaluLogLikelihood([sample]).render(sample)
    # together they are the context, one blank and the option: only the cut is elsewhere
    for option, continuation in zip(reference["choices"], query.continuations, strict=True):
        assert query.prompt.text + continuation == reference["context"] + " " + option


def test_a_task_scores_the_golden_cases_end_to_end(read):
    for case in read("loglikelihood_topk.json")["cases"]:
        row = {str(i): choice.partition(". ")[2] for i, choice in enumerate(case["choices"], 1)}
        row |= {"date": "20210101", "document": "문서", "instruction": "환각 문장을 고르시오."}
        sample = sample_from_row({**row, "label": case["label"]}, 0)
        task = KHaluLogLikelihood([sample])
        scores = ContinuationScores(tuple((ll,) for ll in case["loglikelihoods"]), (False,) * 5)
        for answer in task.parse(sample, scores).values():
            assert answer.value == case["predicted_normalised"]
            assert task.score(sample, answer).value == case["acc_norm"]


def test_published_counts_and_their_marginals(read):
    reference = read("published_counts.json")
    domains = "cehimst"
    for model, cells in reference.items():
        for name, (n, hits) in cells.items():
            where = {}
            if name in published_counts()[model]:
                assert published_counts()[model][name] == (n, hits)
                continue
            head, _, tail = name.partition("_")
            where["n_gold"] = {"p60": 1, "p30": 2, "p10": 3}.get(head)
            polarities = {"hs": "hallucinated", "ts": "faithful", "halu": "hallucinated"}
            where["polarity"] = polarities.get(head) or polarities.get(tail)
            if tail == "true":
                where["polarity"] = "faithful"
            letter = tail or head
            where["domain"] = letter if letter in domains and len(letter) == 1 else None
            items = published_items(model, **where)
            assert (len(items), items.sum()) == (n, hits), (model, name)
