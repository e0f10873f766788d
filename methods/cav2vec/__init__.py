"""CAV2vec: robust audio-visual speech representations by multi-task corrupted prediction."""

from ritornello.methods.cav2vec.encoder import AVHubertConfig, AVHubertModel
from ritornello.methods.cav2vec.finetuning import AVForCTC, AVForSpeechSeq2Seq, RecognizerConfig
from ritornello.methods.cav2vec.pretraining import AVBatch, CAV2vecForPreTraining
from ritornello.methods.cav2vec.tasks import PretrainingConfig
from ritornello.methods.cav2vec.teacher import EMATeacher, distillation_targets

__all__ = [
    "AVBatch",
    "AVForCTC",
    "AVForSpeechSeq2Seq",
    "AVHubertConfig",
    "AVHubertModel",
    "CAV2vecForPreTraining",
    "EMATeacher",
    "PretrainingConfig",
    "RecognizerConfig",
    "distillation_targets",
]
