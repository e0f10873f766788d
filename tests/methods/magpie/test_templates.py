"""Template parts of eight families, and of the real SmolLM2 tokenizer."""

from dataclasses import replace

import pytest

from ritornello.common.chat import ScriptedClient
from ritornello.methods.magpie import ChatTemplateParts, MagpieGenerator


def test_parts_of_each_family(family):
    name, tokenizer, pre, post = family
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    assert (parts.pre_query, parts.post_query) == (pre, post)
    assert tokenizer.eos_token_id in parts.stop_ids
    assert parts.trims_content == (name in ("llama-3", "gemma"))


def test_parts_and_query_make_the_rendered_conversation(family):
    """Also where the template strips blanks, and for text that looks like a template."""
    _, tokenizer, *_ = family
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    for query in ("What?", "two\nlines", "naïve — «ok»", " blanks around ", "{{ braces }}"):
        turns = [{"role": "user", "content": query}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert parts.with_query(query) == rendered


def test_bos_stands_once_in_the_pre_query_ids(family):
    _, tokenizer, pre, _ = family
    ids = ChatTemplateParts.from_tokenizer(tokenizer).pre_query_ids
    assert tokenizer.decode(ids) == pre
    if pre.startswith(tokenizer.bos_token):
        assert ids.count(tokenizer.bos_token_id) == pre.count(tokenizer.bos_token)


def test_bare_header_leaves_out_a_default_system_turn(family):
    name, tokenizer, pre, _ = family
    if name == "vicuna":  # its turns end differently in the middle and at the end
        with pytest.raises(ValueError, match="use system='default'"):
            ChatTemplateParts.from_tokenizer(tokenizer, system=None)
        return
    bare = ChatTemplateParts.from_tokenizer(tokenizer, system=None)
    expected = "<|im_start|>user\n" if name == "chatml-default-system" else pre
    assert bare.pre_query == expected


def test_a_system_text_steers_or_is_refused(family):
    name, tokenizer, *_ = family
    if name in ("gemma", "mistral"):
        with pytest.raises(ValueError, match="system"):
            ChatTemplateParts.from_tokenizer(tokenizer, system="Only maths.")
        return
    parts = ChatTemplateParts.from_tokenizer(tokenizer, system="Only maths.")
    assert "Only maths." in parts.pre_query
    assert "You are helpful" not in parts.pre_query


def test_turns_that_end_in_plain_text_get_a_stop_string(family):
    name, tokenizer, *_ = family
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    if name == "mistral":
        assert "[/INST]" in parts.stop_strings
    if name == "vicuna":
        assert "ASSISTANT:" in parts.stop_strings
    if name == "phi":
        assert {"<|end|>", "<|assistant|>"} <= set(parts.stop_strings)


def test_smollm2_pre_query_ids_are_the_known_ones():
    from ritornello.common.errors import UserError
    from ritornello.common.models import load_smollm2_tokenizer

    try:
        tokenizer = load_smollm2_tokenizer()
    except UserError as error:
        pytest.skip(str(error))
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    both = tokenizer(parts.pre_query + parts.post_query, add_special_tokens=False)["input_ids"]
    known = "1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182"
    assert parts.pre_query_ids == [*map(int, known.split()), 2, 198, 1, 4093, 198]
    assert both[: len(parts.pre_query_ids)] == parts.pre_query_ids
    assert set(parts.stop_ids) == {1, 2}


def test_templates_that_cannot_be_used_are_refused(chatml):
    import copy

    def with_template(template):
        tokenizer = copy.deepcopy(chatml)
        tokenizer.chat_template = template
        return tokenizer

    with pytest.raises(ValueError, match="no chat_template"):
        ChatTemplateParts.from_tokenizer(with_template(None))
    with pytest.raises(ValueError, match="2 times"):
        ChatTemplateParts.from_tokenizer(
            with_template("{{ messages[-1].content }}{{ messages[-1].content }}")
        )
    with pytest.raises(ValueError, match="changes the text"):
        ChatTemplateParts.from_tokenizer(
            with_template("<u>{{ messages[-1].content | replace('How', 'Who') }}</u>")
        )
    silent = with_template("{{ messages[-1].content }}")
    silent.eos_token = None
    silent.pad_token = None
    with pytest.raises(ValueError, match="ends a turn"):
        ChatTemplateParts.from_tokenizer(silent)


def test_self_test_warns_of_a_template_after_which_nothing_ends(chatml):
    parts = ChatTemplateParts.from_tokenizer(chatml)
    endless = ScriptedClient(lambda prompt, params: " ".join(["word"] * 99))
    generator = MagpieGenerator(endless, parts, max_new_tokens=9)
    with pytest.warns(UserWarning, match="none of 8 sampled queries ended by itself"):
        assert generator.self_test() == 0.0
    other = replace(parts, pre_query="x")
    assert "x" in repr(other)
