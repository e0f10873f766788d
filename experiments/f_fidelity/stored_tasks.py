"""Real data sets: of the hub, or from files."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError, one_line
from ritornello.common.models.hub import hub_snapshot, load_tokenizer
from ritornello.experiments.f_fidelity.tasks import Data, Split, Task
from ritornello.methods.f_fidelity import RemovalSpec
from ritornello.methods.f_fidelity.curves import predict
from ritornello.methods.f_fidelity.removal import Inputs, take


def _hub_rows(name: str, split: str, fields: Sequence[str]) -> Any:
    """The rows of a split, of the hub or of a folder that holds the same files."""
    from datasets import load_dataset

    folder = str(hub_snapshot(name, repo_type="dataset"))
    try:
        rows = load_dataset(folder, split=split)
        for field_name in fields:
            rows.features[field_name]
    except Exception as error:
        raise UserError(
            f"{name} must have a split {split!r} with the fields {', '.join(fields)}: {error!r}"
        ) from error
    if not len(rows):
        raise UserError(f"{name}, split {split!r}, holds no rows")
    return rows


def _labels(where: str, rows: Any, label: str) -> Tensor:
    try:
        return torch.tensor([int(value) for value in rows[label]])
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: the field {label!r} must hold whole numbers: {error}") from error


def _check_split(where: str, network: nn.Module, example: Inputs, labels: Tensor) -> None:
    """Shows the untrained network one input, and compares its classes with all labels.

    Raises:
        UserError: the network cannot take the input, or has no class for a label.
    """
    try:
        with torch.no_grad():
            classes = predict(network.eval(), example).shape[1]
    except Exception as error:
        raise UserError(
            f"{where}: task.network cannot take its inputs: {one_line(error)}"
        ) from error
    low, high = labels.min().item(), labels.max().item()
    if low < 0 or high >= classes:
        raise UserError(
            f"{where}: labels must lie in 0 to {classes - 1}, for task.network has {classes} "
            f"classes; they go from {low} to {high}"
        )


def _check_enough(where: str, given: int, validation: int) -> None:
    if given <= validation:
        raise UserError(
            f"{where} holds {given} training examples: task.validation={validation} leaves none"
        )


@dataclass
class HubImages(Task):
    """Images of the hub, or of a folder that holds the same files.

    Attributes:
        name: `uoft-cs/cifar100`, `zh-plus/tiny-imagenet`, ... or a path.
        image, label, test_split: names of the fields and of the split that is explained.
        pixels: side of the images.
    """

    name: str = "uoft-cs/cifar100"
    image: str = "img"
    label: str = "fine_label"
    test_split: str = "test"
    pixels: int = 32
    _loaded: dict[str, Split] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Fetches the data set and what the network starts from, and looks at both."""
        hub_snapshot(self.name, repo_type="dataset")
        network = self.network()
        for split in ("train", self.test_split):
            rows = _hub_rows(self.name, split, (self.image, self.label))
            labels = _labels(f"{self.name}, split {split!r}", rows, self.label)
            if split == "train":
                self._check_count(len(labels))
            one = self._pixels(rows.select([0]))
            _check_split(f"{self.name}, split {split!r}", network, one, labels)

    def data(self, seed: int) -> Data:
        """A random split of the training set; its own test set."""
        whole, test = self._split("train"), self._split(self.test_split)
        wanted, given = self.train + self.validation, len(whole.labels)
        self._check_count(given)
        order = torch.randperm(given, generator=torch.Generator().manual_seed(seed))[:wanted]
        mixed = Split(take(whole.inputs, order), whole.labels[order])
        return Data(
            mixed.rows(0, self.train),
            mixed.rows(self.train, self.train + self.validation),
            test.rows(0, self.test),
        )

    def augment(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """Random crop with a pad of 4 and a flip, one draw per batch of images."""
        assert isinstance(inputs, Tensor)
        flipped = torch.where(
            torch.rand(len(inputs), 1, 1, 1, generator=generator) < 0.5, inputs.flip(3), inputs
        )
        padded = nn.functional.pad(flipped, (4, 4, 4, 4))
        top, left = torch.randint(9, (2, len(inputs)), generator=generator)
        side = torch.arange(self.pixels)
        rows = (top[:, None] + side)[:, None, :, None]
        columns = (left[:, None] + side)[:, None, None, :]
        batch = torch.arange(len(inputs))[:, None, None, None]
        return padded[batch, torch.arange(3)[None, :, None, None], rows, columns]

    def _split(self, split: str) -> Split:
        if split not in self._loaded:
            rows = _hub_rows(self.name, split, (self.image, self.label))
            labels = _labels(f"{self.name}, split {split!r}", rows, self.label)
            self._loaded[split] = Split(self._pixels(rows), labels)
        return self._loaded[split]

    def _pixels(self, rows: Any) -> Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        images = torch.empty(len(rows), 3, self.pixels, self.pixels)
        for i, picture in enumerate(rows[self.image]):
            if not hasattr(picture, "convert"):
                raise UserError(
                    f"{self.name}: the field {self.image!r} must hold images, "
                    f"got {type(picture).__name__}"
                )
            small = picture.convert("RGB").resize((self.pixels, self.pixels))
            images[i] = torch.from_numpy(np.asarray(small).copy()).movedim(2, 0) / 255
        return images.sub_(mean).div_(std)

    def _check_count(self, given: int) -> None:
        wanted = self.train + self.validation
        if given < wanted:
            raise UserError(f"train + validation is {wanted}, but {self.name} holds {given} images")


@dataclass
class HubText(Task):
    """A text classification set of the hub, or of a folder, under a model's own tokenizer.

    Attributes:
        name: `stanfordnlp/sst2`, `google/boolq`, ... or a path.
        texts: one field, or two that are joined as a pair.
        label, test_split: names.
        tokenizer: hub id or folder.
        max_tokens: longer texts are cut.
    """

    name: str = "stanfordnlp/sst2"
    texts: tuple[str, ...] = ("sentence",)
    label: str = "label"
    test_split: str = "validation"
    tokenizer: str = "google-bert/bert-base-uncased"
    max_tokens: int = 128
    mask_id: int = 103
    special_ids: tuple[int, ...] = (0, 101, 102)

    @property
    def removal(self) -> RemovalSpec:
        """Word pieces; the tokenizer's mask replaces them."""
        special = tuple(self.special_ids)
        return RemovalSpec(self.mask_id, "token", special_ids=special)

    def check(self) -> None:
        """Fetches the data set, the tokenizer and what the network starts from; looks at them."""
        hub_snapshot(self.name, repo_type="dataset")
        tokenizer, network = load_tokenizer(self.tokenizer), self.network()
        framed: Any = [*tokenizer("").input_ids, tokenizer.pad_token_id]
        framing = set(framed) - {None}
        if self.mask_id not in tokenizer.all_special_ids or not framing <= set(self.special_ids):
            raise UserError(
                f"task.mask_id={self.mask_id} and task.special_ids={list(self.special_ids)} are "
                f"not those of {self.tokenizer}: its mask is {tokenizer.mask_token_id}, its "
                f"texts are framed and filled by {sorted(framing)}"
            )
        for split in ("train", self.test_split):
            rows = _hub_rows(self.name, split, (*self.texts, self.label))
            labels = _labels(f"{self.name}, split {split!r}", rows, self.label)
            if split == "train":
                _check_enough(self.name, len(labels), self.validation)
            one = self._encode(rows.select([0]))
            _check_split(f"{self.name}, split {split!r}", network, one, labels)

    def data(self, seed: int) -> Data:
        """A random split of the training set; its own test set."""
        whole, test = self._split("train"), self._split(self.test_split)
        order = torch.randperm(len(whole.labels), generator=torch.Generator().manual_seed(seed))
        mixed = Split(take(whole.inputs, order), whole.labels[order])
        last = min(self.train, len(order) - self.validation)
        return Data(
            mixed.rows(0, last), mixed.rows(last, last + self.validation), test.rows(0, self.test)
        )

    def _split(self, split: str) -> Split:
        rows = _hub_rows(self.name, split, (*self.texts, self.label))
        labels = _labels(f"{self.name}, split {split!r}", rows, self.label)
        return Split(self._encode(rows), labels)

    def _encode(self, rows: Any) -> Inputs:
        tokenizer = load_tokenizer(self.tokenizer)
        fields = [list(rows[name]) for name in self.texts]
        if not all(isinstance(text, str) for texts in fields for text in texts):
            raise UserError(f"{self.name}: the fields {', '.join(self.texts)} must hold texts")
        encoded = tokenizer(
            *fields,
            padding="max_length",
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        )
        return {k: encoded[k] for k in ("input_ids", "attention_mask")}


@dataclass
class SeriesFile(Task):
    """Time series (PAM, Boiler, ...) from an .npz file.

    Attributes:
        path: holds `x_train`, `y_train`, `x_test`, `y_test`; x is (n, time, sensors), normalised.
    """

    path: str | None = None

    @property
    def removal(self) -> RemovalSpec:
        """Single cells of time × sensor; 0 replaces them."""
        return RemovalSpec(unit="element")

    def check(self) -> None:
        """Asks for the file, and looks at its sizes."""
        if self.path is None:
            raise UserError(
                "this part needs a file: give task.path=/path/to/series.npz with x_train, "
                "y_train, x_test, y_test, or leave the part out with only.parts"
            )
        names = ("x_train", "y_train", "x_test", "y_test")
        if not Path(self.path).is_file():
            raise UserError(f"task.path={self.path!r}: there is no such file")
        try:
            with np.load(self.path) as file:
                arrays = {name: file[name] for name in names if name in file}
        except (ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
            raise UserError(
                f"task.path={self.path!r} is not an .npz file of numbers: {error}"
            ) from error
        shapes = {name: array.shape for name, array in arrays.items()}
        if len(shapes) < 4 or any(len(shapes[f"x_{s}"]) != 3 for s in ("train", "test")):
            raise UserError(
                f"task.path={self.path!r} must hold {', '.join(names)}, x as (n, time, sensors); "
                f"it holds {shapes}"
            )
        _check_enough(self.path, len(arrays["y_train"]), self.validation)
        network = self.network()
        for split in ("train", "test"):
            x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
            if not len(x) or y.shape != x.shape[:1]:
                raise UserError(
                    f"task.path={self.path!r} must hold one label for each series: x_{split} is "
                    f"{x.shape}, y_{split} is {y.shape}"
                )
            if not np.isfinite(x).all():
                raise UserError(f"task.path={self.path!r}: x_{split} holds NaN or infinite values")
            where = f"task.path={self.path!r}, {split}"
            _check_split(where, network, torch.from_numpy(x[:1]).float(), torch.from_numpy(y))

    def data(self, seed: int) -> Data:
        """A random split of the training set; its own test set."""
        assert self.path is not None
        with np.load(self.path) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        order = torch.randperm(
            len(arrays["y_train"]), generator=torch.Generator().manual_seed(seed)
        )
        mixed = Split(arrays["x_train"].float()[order], arrays["y_train"].long()[order])
        last = min(self.train, len(order) - self.validation)
        test = Split(arrays["x_test"].float(), arrays["y_test"].long())
        return Data(
            mixed.rows(0, last), mixed.rows(last, last + self.validation), test.rows(0, self.test)
        )
