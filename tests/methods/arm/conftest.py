import ast
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.methods.arm.checkpoints import from_official, our_name

GOLDEN = Path(__file__).parents[2] / "golden" / "arm"


@pytest.fixture
def float64():
    """Models and tensors are made in double precision within the test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def golden():
    """Loads `<name>.npz` as tensors; name lists stay numpy arrays."""

    def load(name):
        arrays = np.load(GOLDEN / f"{name}.npz")
        return {k: v if v.dtype.kind == "U" else torch.from_numpy(v) for k, v in arrays.items()}

    return load


def recipe_value(name, shape, salt):
    """The golden files' recipe: every tensor from a hash of its official name."""
    z = np.random.RandomState(zlib.crc32((salt + name).encode()) % 2**32).standard_normal(shape)
    last = name.split(".")[-1]
    if last.startswith("A") and last.endswith("_log"):
        z = np.log(np.arange(1, shape[1] + 1))[None] + 0.1 * z
        z = z.astype(np.float32).astype(np.float64)  # a float32 parameter in the official modules
    elif "dt_proj" in name and last == "bias":
        z = -2.5 + 0.5 * z
    elif last in ("D", "D_b", "D_c", "D_c_b") or (len(shape) == 1 and last == "weight"):
        z = 1 + 0.1 * z
    elif len(shape) >= 2 and last not in ("ar_token", "cls_token", "pos_embed"):
        z = z / np.sqrt(np.prod(shape[1:]))
    else:
        z = 0.1 * z
    return torch.from_numpy(z)


@pytest.fixture
def fill():
    """Fills a model with the recipe's weights; returns its official parameter names."""

    def fill_model(model, arrays, case, salt=None):
        salt = case if salt is None else salt
        names = [str(name) for name in arrays[f"{case}_param_names"]]
        shapes = [ast.literal_eval(str(shape)) for shape in arrays[f"{case}_param_shapes"]]
        values = {n: recipe_value(n, s, salt) for n, s in zip(names, shapes, strict=True)}
        missing, unexpected = model.load_state_dict(from_official(values), strict=False)
        assert not unexpected
        assert set(missing) <= {"pos_embed"}
        return names

    return fill_model


@pytest.fixture
def official_grad_norms():
    """Gradient norms of a model in the order of the official names."""

    def norms(model, names):
        parameters = dict(model.named_parameters())
        found = []
        for official in names:
            name, direction = our_name(official)
            grad = parameters[name].grad
            found.append((grad if direction is None else grad[direction]).norm())
        return torch.stack(found)

    return norms
