"""Chat templates written in the style of each family, and a byte tokenizer to carry them."""

import pytest

CHATML_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "{% endif %}"
)
LLAMA_TURNS = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# name -> (template, special tokens (the first is bos, the last eos), expected T_pre, T_post)
FAMILIES = {
    "chatml": (
        CHATML_TURNS,
        ["<|im_start|>", "<|im_end|>"],
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "chatml-default-system": (
        DEFAULT_SYSTEM + CHATML_TURNS,
        ["<|im_start|>", "<|im_end|>"],
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama-3": (
        LLAMA_TURNS,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}<start_of_turn>"
        "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
        "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        ["<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"],
        "<bos><start_of_turn>user\n",
        "<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi": (
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        ["<s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
        "<|user|>\n",
        "<|end|>\n<|assistant|>\n",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
        "{{ m['content'] }} [/INST]{% elif m['role'] == 'assistant' %}"
        " {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
        ["<s>", "</s>"],
        "<s>[INST] ",
        " [/INST]",
    ),
    "vicuna": (
        "{% if messages[0]['role'] != 'system' %}"
        "A chat between a user and an assistant. {% endif %}"
        "{% for m in messages %}{% if m['role'] == 'user' %}USER: {{ m['content'] }} "
        "{% elif m['role'] == 'assistant' %}ASSISTANT: {{ m['content'] }}{{ eos_token }}"
        "{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}",
        ["<s>", "</s>"],
        "A chat between a user and an assistant. USER: ",
        " ASSISTANT:",
    ),
    "yi": (
        "{{ bos_token }}" + CHATML_TURNS,
        ["<|startoftext|>", "<|im_start|>", "<|im_end|>"],
        "<|startoftext|><|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
}


def byte_tokenizer(template, specials):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(specials + alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=specials[0],
        eos_token=specials[-1],
        pad_token=specials[-1],
        additional_special_tokens=specials[1:-1],
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    template, specials, pre, post = FAMILIES[request.param]
    return request.param, byte_tokenizer(template, specials), pre, post


@pytest.fixture(scope="session")
def chatml():
    template, specials, *_ = FAMILIES["chatml-default-system"]
    return byte_tokenizer(template, specials)


@pytest.fixture(scope="session")
def llama():
    template, specials, *_ = FAMILIES["llama-3"]
    return byte_tokenizer(template, specials)
