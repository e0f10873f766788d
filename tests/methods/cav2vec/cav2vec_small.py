"""A recogniser of the generated sentences, as small as can be."""

import torch

from ritornello.common.data.speech.av_speech import WORDS
from ritornello.methods.cav2vec import AVHubertConfig, RecognizerConfig
from ritornello.methods.cav2vec.tokens import WordTokenizer

TINY = AVHubertConfig.tiny(
    image_size=20, frontend_widths=(4, 8), dropout=0.0, attention_dropout=0.0, input_dropout=0.0
)
TOKENIZER = WordTokenizer(WORDS)


def recognizer(kind, **changes):
    torch.manual_seed(0)
    settings = {"decoder_layers": 1, "decoder_ffn_dim": 64, "decoder_heads": 4}
    dropouts = {"decoder_dropout": 0.0, "label_smoothing": 0.0}
    return kind(RecognizerConfig(len(TOKENIZER), encoder=TINY, **(settings | dropouts | changes)))
