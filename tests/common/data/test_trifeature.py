"""Trifeatures: what is drawn, and that each picture has a random stream of its own."""

import numpy as np
import pytest

from ritornello.common.data.trifeature import (
    COLOURS,
    SHAPES,
    TEXTURES,
    TrifeatureRenderer,
    list_stimuli,
    shape_template,
    split_combinations,
    texture,
    trifeatures,
)

SMALL = TrifeatureRenderer(size=32, shape_size=22, texture_scale=6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rotation_keeps_the_area(shape):
    """Solid white shapes have the area of their template, whatever angle and place."""
    renderer = TrifeatureRenderer(size=96, shape_size=60)
    area = shape_template(shape, 60).sum()
    for seed in range(3):
        image = renderer.render(shape, "white", "solid", np.random.default_rng(seed))
        ink = (image[:, :, 0].astype(float) - 127).clip(0) / 128
        assert ink.sum() == pytest.approx(area, rel=0.08)


def test_only_the_colour_and_the_background_appear():
    image = SMALL.render("square", "red", "stripes", np.random.default_rng(0))
    assert tuple(image[0, 0]) == (127, 127, 127)
    strongest = image[image[:, :, 0] > 200]
    assert len(strongest)
    assert strongest[:, 1].max() < 60


@pytest.mark.parametrize("name", TEXTURES)
@pytest.mark.parametrize("size", [1, 7, 40])
def test_textures_have_any_size(name, size):
    drawn = texture(name, size, np.random.default_rng(0), scale=6)
    assert drawn.shape == (size, size)
    assert set(np.unique(drawn)) <= {0.0, 1.0}


def test_the_split_is_disjoint_and_complete():
    assert split_combinations().sum() == 200
    train, test = list_stimuli("train"), list_stimuli("test")
    assert len(train) == 2400
    combinations = {s[1:] for s in train} | {s[1:] for s in test}
    assert len(combinations) == 1000
    assert not {s[1:] for s in train} & {s[1:] for s in test}
    assert [s[0] for s in train] == sorted(s[0] for s in train)
    assert len(COLOURS) == 10


def test_a_picture_does_not_depend_on_those_before_it():
    drawn = trifeatures("test", renderer=SMALL)
    place = 17
    rng = np.random.default_rng([42, True, place])
    s, t, c = drawn.shape[place], drawn.texture[place], drawn.colour[place]
    alone = SMALL.render(SHAPES[s], tuple(COLOURS)[c], TEXTURES[t], rng)
    assert np.array_equal(drawn.images[place], alone)
    assert drawn.names[place].startswith(f"{SHAPES[s]}_{TEXTURES[t]}_")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: TrifeatureRenderer(size=32, shape_size=30), "shape_size"),
        (lambda: TrifeatureRenderer(texture_scale=2), "texture_scale"),
        (lambda: shape_template("heart"), "shape"),
        (lambda: texture("wool", 8, np.random.default_rng(0)), "texture"),
        (lambda: SMALL.render("square", "mauve", "solid", np.random.default_rng(0)), "colour"),
        (lambda: list_stimuli("valid"), "split"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
