"""Front-ends and readers on real recordings; skipped where those are not present."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.methods.cav2vec import AVHubertConfig, AVHubertModel, reference
from ritornello.methods.cav2vec.corruption import VideoCorruptor
from ritornello.methods.cav2vec.data import clip_batch
from ritornello.methods.cav2vec.lrs3 import (
    STABLE_POINTS,
    LRS3Manifest,
    MouthCrop,
    load_noises,
    read_audio,
    read_video,
    similarity_transform,
)


@pytest.fixture
def recordings(shared_data):
    pytest.importorskip("av", reason="recordings are decoded with PyAV")

    def find(*names: str) -> list[Path]:
        files = sorted((shared_data.joinpath(*names[:-1])).glob(names[-1]))
        if not files:
            pytest.skip(f"no {'/'.join(names)} among the real test data")
        return files

    return find


def test_real_speech_has_the_features_of_the_slow_loop(recordings):
    (file,) = recordings("speech", "jfk", "*.flac")
    waveform = read_audio(file)
    assert 10.5 < len(waveform) / 16_000 < 11.5
    piece = waveform[16_000:32_000]
    fast = LogFilterbank().log_mel(torch.from_numpy(piece)[None])[0]
    np.testing.assert_allclose(fast, reference.log_filterbank(piece), atol=2e-3)


def test_real_digits_survive_mixing_at_the_asked_ratio(recordings):
    import soundfile
    from scipy.signal import resample_poly

    (archive,) = recordings("speech", "fsdd", "*.zip")
    with zipfile.ZipFile(archive) as files:
        names = sorted(n for n in files.namelist() if n.endswith(".wav"))[:8]
        sounds = [soundfile.read(io.BytesIO(files.read(n)), dtype="int16") for n in names]
    assert all(rate == 8000 for _, rate in sounds)
    voices = [np.round(resample_poly(s.astype(float), 2, 1)).astype(np.int16) for s, _ in sounds]
    mixer = AudioMixer(voices[1:], 5.0, None)
    mixed = mixer(voices[0], np.random.default_rng(0)).waveform.astype(float)
    noise = mixed - voices[0]
    ratio = 20 * np.log10(np.sqrt((voices[0].astype(float) ** 2).mean() / (noise**2).mean()))
    assert ratio == pytest.approx(5.0, abs=0.1)


def test_lip_reading_clips_pass_through_the_whole_front(recordings):
    """Sound and picture of real clips decode to the same length and encode together."""
    torch.manual_seed(0)
    model = AVHubertModel(AVHubertConfig.tiny()).eval()
    for file in recordings("video", "grid", "*.mpg")[:2]:
        frames, waveform = read_video(file), read_audio(file)
        assert frames.shape[1:] == (288, 360)
        assert len(frames) == pytest.approx(75, abs=1)
        mouth = np.ascontiguousarray(frames[:, 180:276:3, 130:226:3])
        lips = np.full((len(mouth), 20, 2), 16.0)
        disturbed, flags = VideoCorruptor()(mouth, np.random.default_rng(0), lips)
        assert flags.any()
        heard = waveform[: len(frames) * 640]
        hidden = []
        for picture in (mouth, disturbed):
            batch = clip_batch(heard, picture, 28)
            with torch.no_grad():
                hidden.append(model(batch.audio, batch.video).last_hidden_state)
        assert torch.isfinite(hidden[0]).all()
        assert hidden[0].shape[1] == len(frames)
        moved = (hidden[0] - hidden[1]).norm(dim=-1)[0]
        assert moved[torch.from_numpy(flags)].mean() > moved[torch.from_numpy(~flags)].mean()


def test_a_manifest_lists_real_clips(recordings, tmp_path):
    files = recordings("video", "grid", "*.mpg")[:2]
    lines = [str(files[0].parent)]
    lines += [f"{f.stem}\t{f.name}\t{f.name}\t75\t48000" for f in files]
    (tmp_path / "t.tsv").write_text("\n".join(lines))
    (tmp_path / "t.wrd").write_text("BIN BLUE\nlay red\n")
    (tmp_path / "t.km").write_text("1 2 3\n4 5\n")
    manifest = LRS3Manifest(tmp_path / "t.tsv", tmp_path / "t.wrd", missing_landmarks="count")
    clip = manifest[0]
    assert manifest.frame_counts == [75, 75]
    assert clip.text == "bin blue"
    assert len(clip.waveform) / 640 == pytest.approx(len(clip.frames), abs=2)
    assert manifest.without_landmarks == 1
    assert [len(row) for row in manifest.labels(tmp_path / "t.km")] == [3, 2]
    strict = LRS3Manifest(tmp_path / "t.tsv", tmp_path / "t.wrd")
    with pytest.raises(ValueError, match="landmarks"):
        strict[1]
    for file in files:
        (tmp_path / file.name).symlink_to(file)
    np.save(tmp_path / f"{files[1].stem}.npy", np.zeros((3, 20, 2)))
    strict.root = tmp_path
    with pytest.raises(ValueError, match=r"must hold \(7\d, 20, 2\) lip points, got \(3, 20, 2\)"):
        strict[1]
    with pytest.raises(ValueError, match=r"files that are not there: .*\.npy \(1 in all\)"):
        strict.check_files()
    assert len(LRS3Manifest(tmp_path / "t.tsv", tmp_path / "t.wrd", max_frames=50)) == 0
    with pytest.raises(ValueError, match="no such file"):
        LRS3Manifest(tmp_path / "none.tsv", tmp_path / "t.wrd")
    with pytest.raises(ValueError, match="noise files"):
        load_noises(tmp_path)


def test_a_file_without_the_modality_says_so(recordings, shared_data):
    sound = recordings("speech", "jfk", "*.flac")[0]
    with pytest.raises(ValueError, match="without pictures"):
        read_video(sound)
    picture = recordings("segmentation", "isbi2012_em", "00_image.png")[0]
    with pytest.raises(ValueError, match="without sound"):
        read_audio(picture)


def test_a_turned_and_scaled_face_gives_the_mouth_of_the_mean_face():
    """A picture warped by a known similarity is brought back; the lips end in the middle."""
    rng = np.random.default_rng(0)
    mean_face = rng.uniform(80, 170, (68, 2))
    mean_face[48:68] = np.array([128.0, 150.0]) + rng.uniform(-15, 15, (20, 2))
    angle, scale, shift = 0.3, 0.8, np.array([40.0, 15.0])
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    seen = mean_face @ turn.T + shift
    back = similarity_transform(seen[list(STABLE_POINTS)], mean_face[list(STABLE_POINTS)])
    np.testing.assert_allclose(seen @ back[:, :2].T + back[:, 2], mean_face, atol=1e-6)
    y, x = np.mgrid[:240, :240].astype(float)
    original = np.stack([x, y], -1) - shift
    on_face = original @ np.linalg.inv(turn).T
    picture = 128 + 60 * np.sin(on_face[..., 0] / 9) + 50 * np.cos(on_face[..., 1] / 7)
    frames = np.repeat(picture[None].astype(np.uint8), 3, 0)
    crops, lips = MouthCrop(mean_face)(frames, np.repeat(seen[None], 3, 0))
    corner = mean_face[48:68].mean(0).round() - 48
    np.testing.assert_allclose(lips[0].mean(0), [48, 48], atol=1)
    v, u = np.mgrid[:96, :96].astype(float)
    want = 128 + 60 * np.sin((u + corner[0]) / 9) + 50 * np.cos((v + corner[1]) / 7)
    inner = slice(24, 72)
    assert np.abs(crops[1].astype(float) - want)[inner, inner].mean() < 3
    with pytest.raises(ValueError, match="landmarks"):
        MouthCrop(mean_face)(frames, seen)
    with pytest.raises(ValueError, match="mean_face"):
        MouthCrop(mean_face[:5])
