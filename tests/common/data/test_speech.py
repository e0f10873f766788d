"""Filterbanks, noise mixing and the generated audio-visual speech."""

import json

import numpy as np
import pytest
import torch

from ritornello.common.data.speech import native
from ritornello.common.data.speech.av_speech import GRAMMAR, WORDS, SyntheticAVSpeech
from ritornello.common.data.speech.filterbank import (
    LogFilterbank,
    frame_count,
    stack_frames,
)
from ritornello.common.data.speech.mixing import AudioMixer, corrupted_frames, mix_at_snr
from ritornello.common.data.speech.mouth import OPENING, lip_shape, lip_track, viseme_class
from ritornello.common.data.speech.noise import NOISE_KINDS, make_noise
from ritornello.common.data.speech.synthesis import synthesizer


@pytest.fixture
def speech(tmp_path_factory, monkeypatch):
    pytest.importorskip("espeakng_loader", reason="the speech is made by espeak-ng")
    cache = tmp_path_factory.getbasetemp() / "speech-cache"
    monkeypatch.setenv("RITORNELLO_CACHE", str(cache))
    return SyntheticAVSpeech(40, seed=7, size=16)


# Filterbank ------------------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "torch"])
def backend(request):
    if request.param == "compiled" and (obstacle := native.obstacle()):
        pytest.skip(obstacle)
    return request.param


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_filterbank_equals_the_golden_features(name, backend, golden):
    values = np.load(golden / "cav2vec" / "fbank.npz")
    waveform = torch.from_numpy(values[f"{name}_wav"])[None]
    bank = LogFilterbank(backend=backend)
    log_mel = bank.log_mel(waveform)
    np.testing.assert_allclose(log_mel[0], values[f"{name}_logfbank"], atol=1e-4)
    np.testing.assert_allclose(stack_frames(log_mel, 4)[0], values[f"{name}_stack"], atol=1e-4)
    np.testing.assert_allclose(bank(waveform)[0].T, values[f"{name}_norm"], atol=5e-5)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.int64])
@pytest.mark.parametrize("options", [{}, {"frame_length": 320, "frame_shift": 100}])
def test_both_backends_give_the_same_energies(dtype, options, backend, generator, monkeypatch):
    waveform = torch.randint(-30_000, 30_000, (3, 4713), generator=generator).to(dtype)
    lengths = torch.tensor([4713, 1, 1920])
    plain = LogFilterbank(backend="torch", **options)
    wanted = plain.log_mel(waveform, lengths)
    bank = LogFilterbank(backend=backend, **options)
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        torch.testing.assert_close(bank.log_mel(waveform, lengths), wanted, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(bank.log_mel(waveform[:1]), wanted[:1], atol=1e-4, rtol=1e-5)


def test_the_compiled_backend_steps_aside_where_it_cannot_run(generator):
    waveform = 1000 * torch.randn(1, 1000, generator=generator)
    waveform.requires_grad_()
    LogFilterbank().log_mel(waveform).sum().backward()
    assert waveform.grad.isfinite().all()
    assert waveform.grad.any()
    assert LogFilterbank(fft_size=1024).log_mel(waveform).isfinite().all()
    with pytest.raises(ValueError, match="gradient"):
        LogFilterbank(backend="compiled").log_mel(waveform)
    with pytest.raises(ValueError, match="fft_size=512"):
        LogFilterbank(backend="compiled", frame_length=401).log_mel(waveform.detach())


@pytest.mark.parametrize("samples", [1, 399, 400, 401, 560, 561, 5000])
def test_every_length_gives_the_frames_it_should(samples, backend):
    waveform = torch.full((1, samples), 100, dtype=torch.int16)
    frames = LogFilterbank(backend=backend).log_mel(waveform).shape[1]
    assert frames == frame_count(samples) == max(1, 1 + -(-(samples - 400) // 160))


def test_a_padded_row_has_the_features_of_the_row_alone(generator):
    waveform = torch.randint(-9000, 9000, (2, 6000), generator=generator).to(torch.int16)
    lengths = torch.tensor([6000, 3777])
    bank = LogFilterbank()
    together = bank(waveform, lengths, num_frames=torch.tensor([9, 6]))
    alone = bank(waveform[1:, :3777], num_frames=6)
    torch.testing.assert_close(together[1:, :, :6], alone, atol=1e-4, rtol=1e-4)
    assert not together[1, :, 6:].any()


def test_a_shift_by_whole_stacked_frames_shifts_the_features(generator):
    waveform = torch.randint(-9000, 9000, (1, 16_000), generator=generator).to(torch.int16)
    bank = LogFilterbank()
    shifted = bank(waveform[:, 640 * 5 :])
    # the first sample is not pre-emphasised, so the first frame differs
    torch.testing.assert_close(shifted[..., 1:-1], bank(waveform)[..., 6:-1], atol=1e-3, rtol=1e-3)


def test_silence_is_the_smallest_float_and_normalises_to_zero(backend):
    bank = LogFilterbank(backend=backend)
    silent = torch.zeros(1, 3200, dtype=torch.int16)
    torch.testing.assert_close(
        bank.log_mel(silent), torch.full((1, 19, 26), float(np.log(2.0**-52)))
    )
    assert float(bank(silent)[..., :4].abs().max()) < 1e-3


def test_floats_in_the_unit_range_are_scaled_with_a_warning(generator):
    waveform = torch.randint(-9000, 9000, (1, 4000), generator=generator)
    bank = LogFilterbank()
    with pytest.warns(UserWarning, match="32768"):
        scaled = bank(waveform / 32_768)
    torch.testing.assert_close(scaled, bank(waveform.to(torch.int16)), atol=1e-4, rtol=1e-4)


def test_bad_sound_is_told():
    with pytest.raises(ValueError, match="resample"):
        LogFilterbank(sample_rate=8000)
    with pytest.raises(ValueError, match="frame_length must lie in"):
        LogFilterbank(frame_length=600)
    with pytest.raises(ValueError, match="one channel"):
        LogFilterbank()(torch.zeros(1, 2, 100))
    for lengths in ([-5, 800], [800, 801], [800]):  # would be read past the samples
        with pytest.raises(ValueError, match="lengths must be 2 numbers"):
            LogFilterbank()(torch.ones(2, 800, dtype=torch.int16), torch.tensor(lengths))


# Mixing ----------------------------------------------------------------------------------------


def test_mixing_equals_the_golden_sums(golden):
    folder = golden / "cav2vec"
    values = np.load(folder / "mix_noise.npz")
    for case in json.loads((folder / "mix_noise.json").read_text()):
        rng = np.random.RandomState(case["np_seed"])
        heavy = rng.rand() < 0.75 and case["heavy_snr_db"] is not None
        snr = case["heavy_snr_db"] if heavy else case["snr_db"]
        if case["gaussian_snr"]:
            snr += 5 * rng.normal()
        number, end = case["case"], case["end"]
        mixed = mix_at_snr(
            values[f"{number}_clean"],
            values[f"{number}_noise"],
            snr,
            start=case["start"] or 0,
            end=end,
        )
        assert np.abs(mixed.astype(int) - values[f"{number}_mixed"]).max() <= 1
        if end is not None:
            flags = corrupted_frames(case["start"], end, len(case["frame_occ"]))
            np.testing.assert_array_equal(flags, np.array(case["frame_occ"], dtype=bool))


@pytest.mark.parametrize("snr", [-10.0, -3.0, 0.0, 7.5])
def test_the_mixture_has_the_ratio_that_was_asked_for(snr):
    rng = np.random.default_rng(0)
    clean, noise = (rng.normal(0, 1500, 40_000).astype(np.int16) for _ in range(2))
    added = mix_at_snr(clean, noise, snr).astype(float) - clean
    measured = 20 * np.log10(clean.std() / added.std())
    assert measured == pytest.approx(snr, abs=0.01)  # int16 truncation adds a little


def test_silence_and_short_noise_are_no_trouble():
    rng = np.random.default_rng(0)
    sound = rng.normal(0, 500, 1000).astype(np.int16)
    silent = np.zeros(1000, dtype=np.int16)
    np.testing.assert_array_equal(mix_at_snr(silent, sound, 0), silent)
    np.testing.assert_array_equal(mix_at_snr(sound, silent, 0), sound)
    np.testing.assert_array_equal(
        mix_at_snr(sound, sound[:300], 0), mix_at_snr(sound, np.resize(sound[:300], 1000), 0)
    )


def test_the_mixer_draws_chunks_and_flags_as_the_paper_says():
    rng = np.random.default_rng(0)
    clean, noise = (rng.normal(0, 800, 32_000).astype(np.int16) for _ in range(2))
    mixer = AudioMixer([noise])
    generator = np.random.default_rng(1)
    chunks = 0
    for _ in range(200):
        mixture = mixer(clean, generator)
        changed = np.nonzero(mixture.waveform != clean)[0]
        if changed[-1] - changed[0] < 0.55 * len(clean):
            chunks += 1
            assert 0.29 * len(clean) <= changed[-1] - changed[0]
            inside = np.nonzero(mixture.flags)[0]
            assert inside[0] * 640 >= changed[0]
            assert (inside[-1] + 1) * 640 <= changed[-1] + 1
        else:
            assert not mixture.flags.any()
    assert chunks / 200 == pytest.approx(0.75, abs=0.08)
    flagged = AudioMixer([noise], chunk=None, flag_global=True)(clean, generator)
    assert flagged.flags.all()
    spared = AudioMixer([], probability=0.0)(clean, generator)
    np.testing.assert_array_equal(spared.waveform, clean)


def test_noises_are_read_when_drawn_and_silent_ones_are_passed_over():
    class Files:
        read = 0

        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index not in range(3):
                raise IndexError
            Files.read += 1
            return np.full(10, (500, 0, 900)[index], np.int16)

    mixer = AudioMixer(Files(), chunk=None)
    assert Files.read == 1
    clean = np.full(100, 50, np.int16)
    for seed in range(9):
        assert (mixer(clean, np.random.default_rng(seed)).waveform == 100).all()


def test_a_bad_mixer_is_told():
    with pytest.raises(ValueError, match="one channel"):
        AudioMixer([np.ones((10, 2), np.int16)])(np.ones(9, np.int16), np.random.default_rng(0))
    with pytest.raises(ValueError, match="noises"):
        AudioMixer([np.zeros(10, np.int16)])
    with pytest.raises(ValueError, match="probability"):
        AudioMixer([np.ones(10, np.int16)], probability=2)
    with pytest.raises(ValueError, match="int16"):
        AudioMixer([np.ones(10, np.int16)])(np.zeros(10), np.random.default_rng(0))


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_is_the_same_for_the_same_seed_and_never_silent(kind):
    voices = [np.random.default_rng(0).normal(0, 900, 9000).astype(np.int16)]
    first, second = (
        make_noise(kind, 1.0, np.random.default_rng(3), utterances=voices) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert first.shape == (16_000,)
    assert np.abs(first).max() > 1000
    with pytest.raises(ValueError, match="kind"):
        make_noise("traffic", 1.0, np.random.default_rng(0))


# The generated set -----------------------------------------------------------------------------


def test_pictures_sound_and_text_of_a_clip_fit(speech):
    for clip in speech:
        assert len(clip.frames) == round(25 * len(clip.waveform) / 16_000)
        assert clip.landmarks.shape == (len(clip.frames), 20, 2)
        words = clip.text.split()
        assert all(word in slot for word, slot in zip(words, GRAMMAR, strict=True))
        starts = [start for _, start in clip.phonemes]
        assert starts == sorted(starts)
        assert len(clip.frame_phonemes()) == len(clip.frames)
    assert len(WORDS) == 51


def test_lips_meet_for_bilabials(speech):
    closed = 0
    for clip in speech:
        track = lip_track(clip.phonemes, len(clip.frames))
        ends = [start for _, start in clip.phonemes[1:]] + [len(clip.frames) / 25]
        for (name, start), end in zip(clip.phonemes, ends, strict=True):
            if viseme_class(name) == "p b m":
                frame = min(int((start + end) / 2 * 25), len(track) - 1)
                assert track[frame, OPENING] < 0.12
                closed += 1
    assert closed > 20


def test_the_mouth_opens_with_the_voice(speech):
    """Correlation of the opening with the sound's level in dB, over a floor of 40 dB."""
    opening, level = [], []
    for clip in speech:
        whole = min(len(clip.frames), len(clip.waveform) // 640)
        pieces = clip.waveform[: whole * 640].reshape(whole, 640).astype(float)
        energy = np.square(pieces).mean(1)
        level.append(np.log(energy + 1e-4 * energy.max()))
        opening.append(lip_track(clip.phonemes, len(clip.frames))[:whole, OPENING])
    assert np.corrcoef(np.concatenate(opening), np.concatenate(level))[0, 1] > 0.3


def test_landmarks_surround_the_drawn_mouth(speech):
    for clip in list(speech)[:5]:
        inside = (clip.landmarks > 0) & (clip.landmarks < 16)
        assert inside.mean() > 0.98
        width = clip.landmarks[..., 0].max(1) - clip.landmarks[..., 0].min(1)
        assert (width > 3).all()


def test_the_set_is_made_once_and_is_the_same_again(speech, tmp_path, monkeypatch):
    kept = SyntheticAVSpeech(40, seed=7, size=16)
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path))
    fresh = SyntheticAVSpeech(40, seed=7, size=16)
    for index in (0, 17, 39):
        for a, b in ((speech[index], kept[index]), (speech[index], fresh[index])):
            np.testing.assert_array_equal(a.waveform, b.waveform)
            np.testing.assert_array_equal(a.frames, b.frames)
            assert a.text == b.text


def test_a_sentence_does_not_depend_on_what_was_said_before():
    pytest.importorskip("espeakng_loader", reason="the speech is made by espeak-ng")
    for voice in ("en", "en+f2", "en+m3"):
        first = synthesizer().speak("bin blue at f two now", voice=voice)
        synthesizer().speak("place red", voice="en+f2")
        again = synthesizer().speak("bin blue at f two now", voice=voice)
        np.testing.assert_array_equal(first.waveform, again.waveform)
        assert first.phonemes == again.phonemes
    with pytest.raises(ValueError, match="voice"):
        synthesizer().speak("bin", voice="nobody")
    with pytest.raises(ValueError, match="text"):
        synthesizer().speak(" ")


def test_speakers_can_be_kept_apart(speech):
    seen = {clip.speaker for clip in SyntheticAVSpeech(12, seed=1, size=8, speakers="seen")}
    unseen = {clip.speaker for clip in SyntheticAVSpeech(6, seed=1, size=8, speakers="unseen")}
    assert not seen & unseen
    with pytest.raises(ValueError, match="speakers"):
        SyntheticAVSpeech(2, seed=0, speakers="all of them")
    with pytest.raises(ValueError, match="n must"):
        SyntheticAVSpeech(0, seed=0)
    with pytest.raises(IndexError):
        speech[40]


def test_mnemonics_map_to_lip_shapes_by_their_longest_prefix():
    assert lip_shape("'aI") == lip_shape("aU")
    assert lip_shape("tS") != lip_shape("t")
    assert lip_shape("_:") == lip_shape("_")
    assert viseme_class("'u:") == "u:"
    assert viseme_class("_") == "rest"
    assert viseme_class("qqq") == "other"
