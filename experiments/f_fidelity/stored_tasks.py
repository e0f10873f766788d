"""Real data sets: of the hub, or from files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot, load_tokenizer
from ritornello.experiments.f_fidelity.tasks import Data, Split, Task
from ritornello.methods.f_fidelity import RemovalSpec
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
    return rows


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
        """Fetches the data set, and what the network starts from."""
        hub_snapshot(self.name, repo_type="dataset")
        self.network()

    def data(self, seed: int) -> Data:
        """A random split of the training set; its own test set."""
        whole, test = self._split("train"), self._split(self.test_split)
        wanted, given = self.train + self.validation, len(whole.labels)
        if given < wanted:
            raise UserError(f"train + validation is {wanted}, but {self.name} holds {given} images")
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
            mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
            std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
            images = torch.empty(len(rows), 3, self.pixels, self.pixels)
            for i, picture in enumerate(rows[self.image]):
                small = picture.convert("RGB").resize((self.pixels, self.pixels))
                images[i] = torch.from_numpy(np.asarray(small).copy()).movedim(2, 0) / 255
            labels = torch.tensor(list(rows[self.label]))
            self._loaded[split] = Split(images.sub_(mean).div_(std), labels)
        return self._loaded[split]


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
        """Fetches the data set, the tokenizer, and what the network starts from."""
        hub_snapshot(self.name, repo_type="dataset")
        hub_snapshot(self.tokenizer)
        self.network()

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
        tokenizer = load_tokenizer(self.tokenizer)
        fields = [list(rows[name]) for name in self.texts]
        encoded = tokenizer(
            *fields,
            padding="max_length",
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        )
        labels = torch.tensor([int(label) for label in rows[self.label]])
        return Split({k: encoded[k] for k in ("input_ids", "attention_mask")}, labels)


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
        with np.load(self.path) as file:
            shapes = {name: file[name].shape for name in names if name in file}
        if len(shapes) < 4 or any(len(shapes[f"x_{s}"]) != 3 for s in ("train", "test")):
            raise UserError(
                f"task.path={self.path!r} must hold {', '.join(names)}, x as (n, time, sensors); "
                f"it holds {shapes}"
            )

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
