"""Batches by number."""

import torch

from ritornello.common.data.batches import epoch_rows


def test_an_epoch_takes_every_row_once_and_the_next_another_order():
    first, second = (
        torch.cat([epoch_rows(13, 4, number, seed=1) for number in range(start, start + 3)])
        for start in (0, 3)
    )
    for rows in (first, second):
        assert len(rows) == 12
        assert len(rows.unique()) == 12
        assert 0 <= rows.min() <= rows.max() < 13
    assert not torch.equal(first, second)
    assert not torch.equal(first[:4], epoch_rows(13, 4, 0, seed=2))


def test_fewer_rows_than_a_batch_are_one_smaller_batch():
    for number in range(3):
        assert epoch_rows(3, 8, number, seed=0).sort().values.tolist() == [0, 1, 2]
