"""Blocked search equals the obvious loop (and FAISS, where installed)."""

import numpy as np
import pytest
import torch

from ritornello.methods.magpie import NearestNeighborDeduplicator, dedup


def points(rows, width=16, seed=0):
    """Unit vectors with exact and near duplicates among them."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=1)
    source = torch.randint(rows, (rows // 3,), generator=generator)
    noise = (
        torch.randn(rows // 3, width, generator=generator)
        * torch.tensor([[0.0], [0.03], [0.06]]).repeat(rows, 1)[: rows // 3]
    )
    return torch.cat([base, torch.nn.functional.normalize(base[source] + noise, dim=1)])


def naive(embeddings, threshold, neighbors):
    x = embeddings.double().numpy()
    distance = ((x[:, None] - x[None]) ** 2).sum(-1)
    nearest, count, smallest = [], [], []
    for i, row in enumerate(distance):
        others = [j for j in np.argsort(row, kind="stable") if j != i]
        close = [j for j in others[: neighbors - 1] if row[j] < threshold]
        nearest.append(row[others[0]])
        count.append(len(close))
        smallest.append(min(*close, i) if close else -1)
    return np.array(nearest), np.array(count), np.array(smallest)


@pytest.mark.parametrize("rows", [2, 63, 200])
def test_blocks_equal_the_loop(rows, monkeypatch):
    monkeypatch.setattr(dedup, "_BLOCK_ROWS", 64)
    embeddings = points(rows)
    found = NearestNeighborDeduplicator().fit(embeddings)
    nearest, count, smallest = naive(embeddings, 0.05, 500)
    np.testing.assert_allclose(found.min_neighbor_distance, nearest, rtol=1e-4, atol=1e-9)
    np.testing.assert_array_equal(found.repeat_count, count)
    np.testing.assert_array_equal(found.min_similar_index, smallest)


def test_neighbourhood_bounds_the_count():
    embeddings = torch.ones(6, 4) / 2
    found = NearestNeighborDeduplicator(neighbors=4).fit(embeddings)
    assert (found.repeat_count == 3).all()
    assert found.keep.tolist() == [True] + [False] * 5


def test_scores_are_squared_distances_unless_asked():
    pair = torch.tensor([[0.0, 0.0], [0.6, 0.8]])
    assert NearestNeighborDeduplicator().fit(pair).min_neighbor_distance[0] == pytest.approx(1.0)
    pair = pair * 0.2
    squared = NearestNeighborDeduplicator(0.05).fit(pair)
    plain = NearestNeighborDeduplicator(0.05, metric="l2").fit(pair)
    assert squared.min_neighbor_distance[0] == pytest.approx(0.04)
    assert plain.min_neighbor_distance[0] == pytest.approx(0.2)
    assert squared.repeat_count[0] == 1
    assert plain.repeat_count[0] == 0


def test_one_row_has_no_neighbour_and_none_is_fine():
    alone = NearestNeighborDeduplicator().fit(torch.ones(1, 3))
    assert np.isinf(alone.min_neighbor_distance[0])
    assert alone.keep.all()
    assert len(NearestNeighborDeduplicator().fit(torch.ones(0, 3)).keep) == 0


def test_equal_to_faiss_where_installed():
    faiss = pytest.importorskip("faiss")
    embeddings = points(400, width=384).numpy()
    index = faiss.IndexFlatL2(embeddings.shape[1])
    index.add(embeddings)
    scores, _ = index.search(embeddings, 2)
    found = NearestNeighborDeduplicator().fit(embeddings)
    np.testing.assert_allclose(found.min_neighbor_distance, scores[:, 1], rtol=1e-3, atol=1e-5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="threshold"):
        NearestNeighborDeduplicator(0.0)
    with pytest.raises(ValueError, match="metric"):
        NearestNeighborDeduplicator(metric="cosine")
    with pytest.raises(ValueError, match="finite"):
        NearestNeighborDeduplicator().fit(torch.full((2, 2), torch.nan))
