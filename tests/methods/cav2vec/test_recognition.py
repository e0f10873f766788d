"""Recognisers, beam search, checkpoints, batches and training on small things."""

import io
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from cav2vec_small import TINY, TOKENIZER, recognizer

from ritornello.common.data.speech.av_speech import WORDS
from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.methods.cav2vec import (
    AVForCTC,
    AVForSpeechSeq2Seq,
    AVHubertModel,
    CAV2vecForPreTraining,
    PretrainingConfig,
    wer,
)
from ritornello.methods.cav2vec.beam_search import beam_search
from ritornello.methods.cav2vec.data import LabelledBatches, clip_batch
from ritornello.methods.cav2vec.evaluation import Condition, corruption_grid
from ritornello.methods.cav2vec.tokens import BOS, EOS, PAD

pytest.importorskip("espeakng_loader", reason="the speech is made by espeak-ng")


def test_ctc_learns_eight_clips_by_heart_and_transcribes_them(clips):
    model = recognizer(AVForCTC)
    batches = LabelledBatches(clips, TOKENIZER, None, None, 20, 8, augment=False)
    batch = batches(0)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(120):
        optimizer.zero_grad()
        loss = model(batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if float(loss.detach()) < 0.02:
            break
    assert float(loss.detach()) < 0.1
    hypotheses = [TOKENIZER.decode(t) for t in model.train().generate(batch)]
    spoken = [" ".join(WORDS[t - 4] for t in row[row != PAD].tolist()) for row in batch.tokens]
    assert hypotheses == spoken


@pytest.mark.parametrize("kind", [AVForCTC, AVForSpeechSeq2Seq])
def test_padding_changes_no_decoded_sentence(clips, kind):
    model = recognizer(kind).eval()
    batches = LabelledBatches(clips, TOKENIZER, None, None, 20, 4, augment=False)
    (batch, _), *_ = batches.in_order()
    decoding = {} if kind is AVForCTC else {"beam": 2, "max_len": 6}
    together = model.generate(batch, **decoding)
    for row in range(4):
        length = int((~batch.padding_mask[row]).sum())
        alone = batch._replace(
            audio=batch.audio[row : row + 1, :, :length],
            video=batch.video[row : row + 1, :, :length],
            padding_mask=None,
        )
        assert model.generate(alone, **decoding)[0] == together[row]


def test_the_cached_decoder_equals_the_teacher_forced_one(clips):
    model = recognizer(AVForSpeechSeq2Seq, decoder_layers=2).eval()
    (batch, _), *_ = LabelledBatches(clips, TOKENIZER, None, None, 20, 3, augment=False).in_order()
    whole = model(batch).logits
    hidden, _ = model._encode(batch)
    caches = model.decoder.start(hidden)
    tokens = torch.cat([torch.full((3, 1), EOS), batch.tokens], dim=1)
    steps = []
    for position in range(tokens.shape[1]):
        logits, caches = model.decoder(
            tokens[:, position : position + 1], caches, ~batch.padding_mask[:, None, None]
        )
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)


def test_beam_of_one_is_greedy_and_wider_beams_score_no_worse(generator):
    table = torch.randn(9, 9, generator=generator).log_softmax(-1)

    def step(tokens, origins):
        return table[tokens[:, -1]].clone()

    best = []
    for beam in (1, 4, 9**3):
        found = beam_search(step, 2, beam=beam, max_len=3, eos=EOS, pad=PAD, length_penalty=0)
        assert found[0] == found[1]
        best.append(found[0][0].score)
        tokens = found[0][0].tokens
        path = [EOS, *tokens]
        score = sum(float(table[a, b]) for a, b in zip(path, tokens, strict=False))
        assert best[-1] == pytest.approx(score, abs=1e-5)
    assert best[0] <= best[2] + 1e-6
    assert best[1] <= best[2] + 1e-6


def test_the_corruption_grid_is_the_same_in_any_batch_size(clips, mixer):
    model = recognizer(AVForCTC)
    grid = [Condition("clean"), Condition("both", AudioMixer(mixer.noises, -5.0, None))]
    with pytest.raises(ValueError, match="tokenizer is None"):
        corruption_grid(model, clips, grid)
    model.tokenizer = TOKENIZER
    first, second = (corruption_grid(model, clips, grid, batch_size=n) for n in (8, 3))
    assert first.equals(second)
    assert list(first["condition"]) == ["clean", "both"]
    references = [clip.text for clip in clips]
    for row in first.itertuples():
        assert len(row.errors) == len(row.hypotheses) == 8
        assert row.wer == pytest.approx(wer(row.hypotheses, references))
        assert row.wer == pytest.approx(100 * sum(row.errors) / sum(row.words))


def test_padded_pictures_are_not_looked_at_in_inference_and_change_nothing(generator):
    model = AVHubertModel(TINY)
    video = torch.randn(3, 1, 9, 20, 20, generator=generator)
    padding = torch.arange(9) >= torch.tensor([[9], [4], [1]])
    video *= ~padding[:, None, :, None, None]
    model(None, video)  # statistics away from 0 and 1
    model.eval()
    seen = []
    model.feature_extractor_video.resnet.trunk.register_forward_hook(
        lambda _module, inputs, _output: seen.append(len(inputs[0]))
    )
    together = model(None, video, padding).last_hidden_state
    assert seen == [14]
    for row, length in enumerate([9, 4, 1]):
        alone = model(None, video[row : row + 1, :, :length]).last_hidden_state
        torch.testing.assert_close(together[row, :length], alone[0], atol=1e-5, rtol=1e-4)
    model.train()
    model(None, video, padding)
    assert seen[-1] == 27


def fairseq_file(model, *, old_names: bool, prefix: str = "", extra=None, settings=None) -> bytes:
    """A file as fairseq writes it: foreign settings objects around the state dict."""
    state = OrderedDict()
    for name, tensor in model.state_dict().items():
        if name.startswith("teacher."):
            continue
        if old_names:
            name = name.replace("parametrizations.weight.original0", "weight_g")
            name = name.replace("parametrizations.weight.original1", "weight_v")
        state[prefix + name] = tensor
    state.update(extra or {})
    content = {"cfg": {"model": settings or {}}, "model": state, "args": None}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


SETTINGS = {"encoder_attention_heads": 4, "layer_norm_first": True, "encoder_layerdrop": 0.0}


@pytest.mark.parametrize("old_names", [True, False])
def test_published_files_load_with_both_spellings_of_weight_norm(old_names, generator):
    model = AVHubertModel(TINY).eval()
    data = fairseq_file(model, old_names=old_names, settings=SETTINGS)
    loaded = AVHubertModel.from_fairseq(data, image_size=20).eval()
    audio = torch.randn(1, 104, 7, generator=generator)
    video = torch.randn(1, 1, 7, 20, 20, generator=generator)
    assert torch.equal(
        loaded(audio, video).last_hidden_state, model(audio, video).last_hidden_state
    )
    uptrained = CAV2vecForPreTraining.from_fairseq(data, num_classes=9, final_dim=8, top_k=2)
    for name, tensor in uptrained.teacher.module.state_dict().items():
        assert torch.equal(tensor, model.encoder.state_dict()[name])


def test_fine_tuned_files_load_their_heads():
    model = recognizer(AVForSpeechSeq2Seq)
    extra = {f"decoder.{k}": v for k, v in model.decoder.state_dict().items()}
    data = fairseq_file(
        model.backbone,
        old_names=True,
        prefix="encoder.w2v_model.",
        extra=extra,
        settings={"decoder_attention_heads": 4, "w2v_args": {"model": SETTINGS}},
    )
    loaded = AVForSpeechSeq2Seq.from_fairseq(data)
    assert loaded.config.decoder_heads == 4
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    ctc = recognizer(AVForCTC)
    head = {f"encoder.proj.{k}": v for k, v in ctc.proj.state_dict().items()}
    data = fairseq_file(
        ctc.backbone,
        old_names=True,
        prefix="encoder.w2v_model.",
        extra=head,
        settings={"w2v_args": {"model": SETTINGS}},
    )
    assert torch.equal(AVForCTC.from_fairseq(data).proj.weight, ctc.proj.weight)
    with pytest.raises(ValueError, match="decoder"):
        AVForSpeechSeq2Seq.from_fairseq(data)
    bare = fairseq_file(model.backbone, old_names=True, prefix="encoder.w2v_model.", extra=extra)
    with pytest.raises(ValueError, match="pass num_heads"):
        AVForSpeechSeq2Seq.from_fairseq(bare)
    with pytest.raises(ValueError, match="pass decoder_heads"):
        AVForSpeechSeq2Seq.from_fairseq(bare, num_heads=4)
    given = AVForSpeechSeq2Seq.from_fairseq(bare, num_heads=4, decoder_heads=2)
    assert (given.config.encoder.num_heads, given.config.decoder_heads) == (4, 2)
    uptraining = CAV2vecForPreTraining.from_fairseq(bare, num_heads=4, num_classes=9, top_k=2)
    assert uptraining.encoder_config.num_heads == 4


@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_checkpoint_says_so(content, tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        AVHubertModel.from_fairseq(content)
    with pytest.raises(ValueError, match="no such file"):
        AVHubertModel.from_fairseq(tmp_path / "large.pt")
    other = io.BytesIO()
    torch.save({"model": {"post_extract_proj.weight": torch.zeros(2, 2)}}, other)
    with pytest.raises(ValueError, match="audio-visual"):
        AVHubertModel.from_fairseq(other.getvalue())


class _Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [exec, eval, print, __import__])
def test_a_file_that_wants_to_run_something_is_refused(function):
    buffer = io.BytesIO()
    torch.save({"model": {}, "cfg": _Call(function, "1")}, buffer)
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        AVHubertModel.from_fairseq(buffer.getvalue())


def test_settings_of_foreign_classes_are_read_without_their_classes(tmp_path, monkeypatch):
    """A pickle that names omegaconf classes loads although nothing of omegaconf is imported."""
    import sys
    import types

    module = types.ModuleType("omegaconf.fake")

    class Node:
        def __init__(self, value):
            self.__dict__["_val"] = value

    class Config:
        def __init__(self, content):
            self.__dict__.update(_content=content, _type=dict, _number=np.float64(1))

    for kind in (Node, Config):
        kind.__module__, kind.__qualname__ = "omegaconf.fake", kind.__name__
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "omegaconf.fake", module)
    settings = Config({"model": Config({k: Node(v) for k, v in SETTINGS.items()})})
    buffer = io.BytesIO()
    torch.save({"cfg": settings, "model": AVHubertModel(TINY).state_dict()}, buffer)
    monkeypatch.delitem(sys.modules, "omegaconf.fake")
    loaded = AVHubertModel.from_fairseq(buffer.getvalue())
    assert loaded.config.num_heads == 4
    assert loaded.config.layerdrop == 0.0


@pytest.mark.parametrize("build", ["pretraining", "ctc"])
def test_a_saved_model_comes_back_the_same(build, tmp_path):
    if build == "ctc":
        model = recognizer(AVForCTC)
    else:
        model = CAV2vecForPreTraining(PretrainingConfig(TINY, num_classes=5, final_dim=8, top_k=2))
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert back.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    with pytest.raises(ValueError, match=r"config\.json"):
        type(model).from_pretrained(tmp_path / "nowhere")


def test_one_clip_is_transcribed_from_either_modality(clips):
    model, clip = recognizer(AVForCTC), clips[0]
    for sound, picture in (
        (clip.waveform, clip.frames),
        (clip.waveform, None),
        (None, clip.frames),
    ):
        text = model.transcribe(wav=sound, frames=picture, tokenizer=TOKENIZER)
        assert set(text.split()) <= set(WORDS)
    with pytest.raises(ValueError, match=r"set model\.tokenizer"):
        model.transcribe(clip.waveform, clip.frames)
    model.tokenizer = TOKENIZER
    text = model.transcribe(clip.waveform, clip.frames)
    assert text == model.transcribe(clip.waveform, clip.frames, TOKENIZER)
    with pytest.raises(ValueError, match="both None"):
        clip_batch(None, None, 20)
    with pytest.raises(ValueError, match="one channel"):
        clip_batch(np.zeros((2, 16000), np.int16), None, 20)
    with pytest.raises(ValueError, match="equally long"):
        clip_batch(clip.waveform[:6400], clip.frames, 20)
    with pytest.raises(ValueError, match="at least 20 pixels"):
        clip_batch(None, clip.frames[:, :10], 20)


def test_words_become_tokens_and_come_back():
    text = "bin blue at f two now"
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode([BOS, *tokens, EOS]) == text
    assert TOKENIZER.encode("bin xyzzy")[1] == 3
