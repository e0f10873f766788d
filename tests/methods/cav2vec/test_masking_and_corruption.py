"""Properties of masks and of disturbed pictures."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.common.kernels.compiled import build_obstacle
from ritornello.methods.cav2vec.corruption import (
    GaussianBlur,
    GaussianPixelNoise,
    HandOcclusion,
    ObjectOcclusion,
    Pixelate,
    SequenceNoise,
    VideoCorruptor,
    draw_segments,
    gaussian_noise,
)
from ritornello.methods.cav2vec.masking import (
    draw_masks,
    mask_audio,
    mask_video,
    runs,
    skip_corrupted_runs,
    span_mask,
    substitute_same_sequence,
    substitute_sources,
)
from ritornello.methods.cav2vec.occluders import Patch, PatchFolder, draw_hand, draw_object
from ritornello.methods.cav2vec.pictures import SOURCE, gaussian_blur, overlay


def clip(frames: int = 30, size: int = 32, seed: int = 0):
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (frames, size, size), dtype=np.uint8)
    lips = size / 2 + rng.uniform(-size / 6, size / 6, (frames, 20, 2))
    return pictures, lips


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 1000))
def test_every_row_has_the_same_number_of_masked_frames(batch, frames, seed):
    mask = span_mask(
        batch, frames, probability=0.8, length=10, generator=np.random.default_rng(seed)
    )
    assert len(set(mask.sum(1))) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 4), st.integers(2, 60), st.integers(0, 1000))
def test_padding_is_never_masked(batch, frames, seed):
    rng = np.random.default_rng(seed)
    padding = np.zeros((batch, frames), dtype=bool)
    padding[0, frames - rng.integers(0, frames - 1) :] = True
    mask = span_mask(batch, frames, probability=0.8, length=10, generator=rng, padding_mask=padding)
    assert not (mask & padding).any()


def test_whole_runs_between_corrupted_ends_are_unmasked():
    mask = np.array([[0, 1, 1, 1, 0, 1, 1, 0, 1, 0]], dtype=bool)
    #                   run 1-3       run 5-6  run 8
    flag = np.array([[0, 1, 0, 1, 0, 1, 0, 0, 1, 0]], dtype=bool)
    #                   both ends     first    its only frame
    want = np.array([[0, 0, 0, 0, 0, 1, 1, 0, 0, 0]], dtype=bool)
    np.testing.assert_array_equal(skip_corrupted_runs(mask, flag), want)
    tensors = torch.from_numpy(mask), torch.from_numpy(flag)
    np.testing.assert_array_equal(skip_corrupted_runs(*tensors), want)


def test_runs_touching_both_edges_are_found():
    mask = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=bool)
    assert runs(mask).tolist() == [[0, 0, 2], [0, 3, 4], [1, 0, 4]]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(0, 1000))
def test_a_masked_run_is_replaced_by_another_run_of_the_clip(frames, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((3, frames)) < 0.3
    sources = substitute_sources(mask, rng)
    np.testing.assert_array_equal(sources[~mask], np.tile(np.arange(frames), (3, 1))[~mask])
    for row, start, end in runs(mask):
        shown = sources[row, start:end]
        length = end - start
        forced = not max(start - length, 0) and end == frames
        assert forced or not set(shown[:1]) & set(range(start, end))
        # consecutive frames, held at the clip's end
        np.testing.assert_array_equal(shown, np.minimum(shown[0] + np.arange(length), frames - 1))


def test_a_clip_stands_in_for_itself(generator):
    video = torch.randn(3, 1, 20, 4, 4, generator=generator)
    mask = torch.zeros(3, 20, dtype=torch.bool)
    mask[0, 4:8] = mask[2, 10:] = True
    shown = substitute_same_sequence(video, mask, np.random.default_rng(0))
    assert torch.equal(shown[:, 0][~mask], video[:, 0][~mask])
    for row, time in mask.nonzero().tolist():
        same = (video[row, 0] == shown[row, 0, time]).flatten(1).all(1)
        assert same.any()
        assert not same[time]
    alone = substitute_same_sequence(video[:1], mask[:1], np.random.default_rng(0))
    assert not alone[0, 0, 4:8].any()


def test_a_batch_of_one_shows_zeros():
    flags = torch.zeros(1, 30, dtype=torch.bool)
    masks = draw_masks(flags, None, generator=np.random.default_rng(0))
    video = mask_video(torch.ones(1, 1, 30, 4, 4), masks.video_source)
    assert torch.equal(video[0, 0, :, 0, 0] == 0, masks.video[0])
    audio = mask_audio(torch.ones(1, 6, 30), masks.audio, torch.full((6,), 5.0), with_zeros=True)
    assert torch.equal(audio[0, 0] == 0, masks.audio[0])


def test_masked_sound_becomes_the_embedding():
    mask = torch.tensor([[True, False], [False, True]])
    embedding = torch.arange(3.0)
    masked = mask_audio(torch.full((2, 3, 2), 9.0), mask, embedding, with_zeros=False)
    want = torch.tensor(
        [[[0.0, 9.0], [1.0, 9.0], [2.0, 9.0]], [[9.0, 0.0], [9.0, 1.0], [9.0, 2.0]]]
    )
    assert torch.equal(masked, want)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 80), st.integers(1, 4), st.integers(0, 1000))
def test_segments_lie_in_their_parts(frames, frequency, seed):
    segments = draw_segments(frames, np.random.default_rng(seed), frequency=frequency)
    part = frames // frequency
    assert len(segments) <= frequency
    for segment in segments:
        length = segment.stop - segment.start
        assert 1 <= length <= max(part // 2, 1)
        assert segment.start // part == (segment.stop - 1) // part


CORRUPTIONS = [
    ObjectOcclusion(),
    HandOcclusion(),
    Pixelate(),
    GaussianPixelNoise(),
    GaussianBlur((1.0, 2.0)),
    SequenceNoise(noise_probability=1.0, blur_probability=0.0),
    VideoCorruptor(),
]


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: type(c).__name__)
def test_only_flagged_frames_are_touched_and_the_input_stays(corruption):
    pictures, lips = clip()
    before = pictures.copy()
    result, flags = corruption(pictures, np.random.default_rng(1), lips)
    np.testing.assert_array_equal(pictures, before)
    changed = (result != pictures).any(axis=(1, 2))
    assert flags.any()
    assert not (changed & ~flags).any()
    assert changed.sum() >= 0.8 * flags.sum()


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_clips_of_one_to_three_frames_pass(corruption, frames):
    pictures, lips = clip(frames)
    result, flags = corruption(pictures, np.random.default_rng(0), lips)
    assert result.shape == pictures.shape
    assert flags.shape == (frames,)


def test_the_same_generator_gives_the_same_corruption():
    pictures, lips = clip()
    first, second = (VideoCorruptor()(pictures, np.random.default_rng(5), lips) for _ in range(2))
    np.testing.assert_array_equal(first.frames, second.frames)


def test_an_object_follows_the_lips():
    pictures = np.zeros((40, 96, 96), dtype=np.uint8)
    path = np.stack([np.linspace(30, 70, 40), np.full(40, 50.0)], axis=1)
    lips = np.repeat(path[:, None], 20, axis=1)
    white = ObjectOcclusion(
        lambda size, _: Patch(np.full((size, size), 255.0), np.ones((size, size)))
    )
    result, flags = white(pictures, np.random.default_rng(2), lips)
    columns = [np.nonzero(frame.any(0))[0].mean() for frame in result[flags]]
    np.testing.assert_allclose(np.diff(columns), np.diff(path[flags, 0]), atol=1.01)


def test_patches_off_the_frame_change_nothing():
    pictures, _ = clip(2)
    same = overlay(pictures, np.ones((5, 5)), np.ones((5, 5)), np.array([-5, 40]), np.array([0, 3]))
    np.testing.assert_array_equal(same, pictures)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_the_compiled_loops_give_the_values_of_the_plain_ones(channels, monkeypatch):
    if obstacle := build_obstacle(*SOURCE):
        pytest.skip(obstacle)
    rng = np.random.default_rng(0)
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        for _ in range(20):
            count, height, width, rows, columns = rng.integers(4, 40, 5)
            pictures = rng.integers(0, 256, (count, height, width, *channels), dtype=np.uint8)
            patch, alpha = rng.uniform(0, 255, (rows, columns, *channels)), rng.uniform(size=rows)
            opacity = np.tile(alpha[:, None], columns).clip(0.2, 0.8)
            top, left = rng.integers(-50, 50, (2, count))
            kept = pictures.copy()
            compiled, plain = (
                overlay(pictures, patch, opacity, top, left, backend=b)
                for b in ("compiled", "numpy")
            )
            np.testing.assert_array_equal(compiled, plain)
            for target in (np.zeros_like(pictures), pictures.copy()):
                source = pictures if not target.any() else target
                overlay(source, patch, opacity, top, left, target)
                np.testing.assert_array_equal(target, plain)
            if not channels:
                sigma = rng.uniform(0.1, 2)
                blurred = [gaussian_blur(pictures, sigma, b) for b in ("compiled", "numpy")]
                np.testing.assert_array_equal(*blurred)
            np.testing.assert_array_equal(pictures, kept)


def test_noise_and_blur_have_the_strength_they_say():
    grey = np.full((4, 64, 64), 128, dtype=np.uint8)
    noisy = gaussian_noise(grey, 0.01, np.random.default_rng(0))
    assert noisy.std() == pytest.approx(25.5, rel=0.03)
    pictures, _ = clip(2, 40)
    from scipy.ndimage import correlate1d

    taps = np.exp(-0.5 * (np.arange(-3, 4) / 1.5) ** 2)
    want = pictures.astype(float)
    for axis in (1, 2):
        want = correlate1d(want, taps / taps.sum(), axis, mode="mirror")
    assert np.abs(gaussian_blur(pictures, 1.5) - want).max() <= 1


@pytest.mark.parametrize("draw", [draw_object, draw_hand])
@pytest.mark.parametrize("size", [2, 15, 96])
def test_drawn_patches_are_pictures_with_an_opacity(draw, size):
    image, alpha = draw(size, np.random.default_rng(0))
    assert image.shape == alpha.shape == (size, size)
    assert image.min() >= 0
    assert image.max() <= 255
    assert 0 <= alpha.min() <= alpha.max() <= 1


def test_patches_are_read_from_folders(tmp_path):
    from PIL import Image

    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    picture = np.zeros((20, 20), dtype=np.uint8)
    picture[:10] = 200
    Image.fromarray(picture).save(tmp_path / "images" / "cup.png")
    Image.fromarray((picture > 0).astype(np.uint8) * 255).save(tmp_path / "masks" / "cup.png")
    upright = PatchFolder(tmp_path / "images", tmp_path / "masks")(20, np.random.default_rng(0))
    turned = PatchFolder(tmp_path / "images", tmp_path / "masks", turn=True)(
        20, np.random.default_rng(0)
    )
    assert upright.image[2, 5] > 190
    assert turned.image[17, 5] > 190
    assert upright.alpha[2, 5] == pytest.approx(1, abs=0.02)
    with pytest.raises(ValueError, match="same names"):
        PatchFolder(tmp_path / "images", tmp_path)


def test_bad_pictures_are_told():
    pictures, patch = np.zeros((2, 8, 8), np.uint8), np.ones((3, 2))
    with pytest.raises(ValueError, match="patch must fit"):
        overlay(pictures, np.ones((2, 3)), np.ones((3, 2)), np.zeros(2, int), np.zeros(2, int))
    with pytest.raises(ValueError, match="out must be one piece"):
        overlay(pictures, patch, patch, *np.zeros((2, 2), int), out=np.zeros((2, 8, 9), np.uint8))
    with pytest.raises(ValueError, match="one entry per frame"):
        overlay(pictures, patch, patch, np.zeros(1, int), np.zeros(2, int))
    for disturb in (
        lambda x: overlay(x, patch, patch, *np.zeros((2, 2), int)),
        lambda x: gaussian_blur(x, 1.0),
    ):
        with pytest.raises(ValueError, match="frames must be uint8"):
            disturb(pictures.astype(np.float32))
    with pytest.raises(ValueError, match="at least 4 pixels"):
        gaussian_blur(pictures[:, :3], 1.0)
    pictures, lips = clip()
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="landmarks"):
        ObjectOcclusion()(pictures, rng)
    with pytest.raises(ValueError, match="uint8"):
        VideoCorruptor()(pictures.astype(float), rng, lips)
    with pytest.raises(ValueError, match="frequency"):
        draw_segments(10, rng, frequency=0)
    with pytest.raises(ValueError, match="length"):
        span_mask(1, 10, probability=0.5, length=0, generator=rng)
    with pytest.raises(ValueError, match="pixel_size"):
        Pixelate(pixel_size=0)(pictures, rng)
