"""A key-value cache whose rows come and go: the memory of a batch that is refilled as it runs.

Legend: R rows, H key-value heads, C columns (time), D head dim.
"""

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

SPARE_COLUMNS = 64


class RowLayer(DynamicLayer):
    """Keys and values of one layer in storage with spare columns; rows are moved, never rebuilt.

    `keys` and `values` are views (R, H, C, D) of the storage, so that writing a decoded token
    copies that token alone.
    """

    keys: Tensor
    values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Takes shape, dtype and device from the first states (R, H, new, D)."""
        self.device = key_states.device
        rows, heads, _, _ = key_states.shape
        self.keys = key_states.new_empty(rows, heads, 0, key_states.shape[-1])
        self.values = value_states.new_empty(rows, heads, 0, value_states.shape[-1])
        self._storage = (self.keys, self.values)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends (R, H, new, D) and returns everything seen so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, columns, _ = self.keys.shape
        end = columns + key_states.shape[2]
        if end > self._storage[0].shape[2]:
            self.replace(self.keys, self.values, spare=max(SPARE_COLUMNS, columns // 4), end=end)
        for storage, new in zip(self._storage, (key_states, value_states), strict=True):
            storage[:rows, :, columns:end] = new
        self._set_view(rows, end)
        return self.keys, self.values

    def replace(self, keys: Tensor, values: Tensor, *, spare: int, end: int | None = None) -> None:
        """Takes (R, H, C, D) tensors over into fresh storage with `spare` columns after `end`."""
        rows, _, columns, _ = keys.shape
        storages = []
        for states in (keys, values):
            shape = (rows, states.shape[1], (end or columns) + spare, states.shape[3])
            storage = states.new_empty(shape)
            storage[:, :, :columns] = states
            storages.append(storage)
        self.device = keys.device
        self.is_initialized = True
        self._storage = tuple(storages)
        self._set_view(rows, columns)

    def drop_row(self, row: int) -> None:
        """The last row takes the place of `row`."""
        rows, _, columns, _ = self.keys.shape
        if row != rows - 1:
            for view in (self.keys, self.values):
                view[row] = view[rows - 1]
        self._set_view(rows - 1, columns)

    def _set_view(self, rows: int, columns: int) -> None:
        self.keys = self._storage[0][:rows, :, :columns]
        self.values = self._storage[1][:rows, :, :columns]


class RowCache(Cache):
    """A transformers cache of `RowLayer`s, with the mask of the columns that hold tokens.

    Keys are cached after the rotary embedding, so a row may lie at any columns, with gaps, as long
    as `valid` (R, C) says where its tokens are and positions are given explicitly.
    """

    layers: list[RowLayer]

    def __init__(self, valid: Tensor) -> None:
        super().__init__(layer_class_to_replicate=RowLayer)
        self.valid = valid

    @property
    def rows(self) -> int:
        """R."""
        return self.valid.shape[0]

    @property
    def columns(self) -> int:
        """C."""
        return self.valid.shape[1]

    def extend_valid(self, new: Tensor) -> Tensor:
        """Appends the columns `new` (R, n) that the next forward pass will write."""
        self.valid = torch.cat([self.valid, new], dim=1)
        return self.valid

    def select(self, rows: Tensor) -> "RowCache":
        """A new cache of the given rows, each as often as it is named."""
        chosen = RowCache(self.valid[rows])
        for layer in self.layers:
            copy = RowLayer()
            copy.replace(layer.keys[rows], layer.values[rows], spare=SPARE_COLUMNS)
            chosen.layers.append(copy)
        return chosen

    def drop_row(self, row: int) -> None:
        """Forgets a row; the last one moves into its place."""
        last = self.rows - 1
        if row != last:
            self.valid[row] = self.valid[last]
        self.valid = self.valid[:last]
        for layer in self.layers:
            layer.drop_row(row)

    def append_rows(self, other: "RowCache") -> None:
        """Adds the rows of another cache, aligned at the newest column.

        Columns at the front in which no row holds a token any more are given up.
        """
        pair = [cache._without_empty_front() for cache in (self, other)]
        columns = max(start.shape[1] for start, _ in pair)
        self.valid = torch.cat([_pad_front(valid, columns, dim=1) for valid, _ in pair])
        for ours, theirs in zip(self.layers, other.layers, strict=True):
            states = []
            for name in ("keys", "values"):
                parts = [
                    _pad_front(getattr(layer, name)[:, :, skip:], columns, dim=2)
                    for layer, (_, skip) in zip((ours, theirs), pair, strict=True)
                ]
                states.append(torch.cat(parts))
            ours.replace(*states, spare=SPARE_COLUMNS)

    def _without_empty_front(self) -> tuple[Tensor, int]:
        used = self.valid.any(0)
        skip = int(used.int().argmax()) if bool(used.any()) else 0
        return self.valid[:, skip:], skip


def _pad_front(states: Tensor, size: int, *, dim: int) -> Tensor:
    """Zeros before the first element along `dim`, up to `size`."""
    missing = size - states.shape[dim]
    if missing == 0:
        return states
    shape = list(states.shape)
    shape[dim] = missing
    return torch.cat([states.new_zeros(shape), states], dim=dim)
