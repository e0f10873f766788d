"""CAV2vec: robust audio-visual speech representations by multi-task corrupted prediction."""

from ritornello.common.data.speech.av_speech import SyntheticAVSpeech
from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.common.evaluation.wer import word_error_rate as wer
from ritornello.methods.cav2vec.corruption import (
    GaussianBlur,
    GaussianPixelNoise,
    HandOcclusion,
    ObjectOcclusion,
    Pixelate,
    VideoCorruptor,
)
from ritornello.methods.cav2vec.encoder import AVEncoderOutput, AVHubertConfig, AVHubertModel
from ritornello.methods.cav2vec.evaluation import Condition, corruption_grid
from ritornello.methods.cav2vec.finetuning import AVForCTC, AVForSpeechSeq2Seq, RecognizerConfig
from ritornello.methods.cav2vec.folding import fold_batch_norm
from ritornello.methods.cav2vec.lrs3 import LRS3Manifest, MouthCrop
from ritornello.methods.cav2vec.masking import (
    skip_corrupted_runs,
    span_mask,
    substitute_same_sequence,
)
from ritornello.methods.cav2vec.pretraining import AVBatch, CAV2vecForPreTraining, CAV2vecOutput
from ritornello.methods.cav2vec.tasks import PretrainingConfig
from ritornello.methods.cav2vec.teacher import EMATeacher, distillation_targets

__all__ = [
    "AVBatch",
    "AVEncoderOutput",
    "AVForCTC",
    "AVForSpeechSeq2Seq",
    "AVHubertConfig",
    "AVHubertModel",
    "AudioMixer",
    "CAV2vecForPreTraining",
    "CAV2vecOutput",
    "Condition",
    "EMATeacher",
    "GaussianBlur",
    "GaussianPixelNoise",
    "HandOcclusion",
    "LRS3Manifest",
    "LogFilterbank",
    "MouthCrop",
    "ObjectOcclusion",
    "Pixelate",
    "PretrainingConfig",
    "RecognizerConfig",
    "SyntheticAVSpeech",
    "VideoCorruptor",
    "corruption_grid",
    "distillation_targets",
    "fold_batch_norm",
    "skip_corrupted_runs",
    "span_mask",
    "substitute_same_sequence",
    "wer",
]
