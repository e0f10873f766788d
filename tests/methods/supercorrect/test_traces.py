"""The tolerant parser of hierarchical thoughts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.methods.supercorrect.traces import (
    Step,
    Trace,
    parse_trace,
    render_trace,
    solution_steps,
    trace_faults,
)

words = st.text(st.sampled_from("ab 12+=<\n"), min_size=1, max_size=12).map(
    lambda text: f"x{text.strip()}y"
)
optional = st.none() | words
steps = st.builds(Step, words, optional, optional, optional)
traces = st.builds(Trace, st.lists(steps, max_size=4).map(tuple), optional, optional)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_rendering_and_parsing_give_the_trace_back(trace):
    assert parse_trace(render_trace(trace)) == trace


@settings(max_examples=60, deadline=None)
@given(traces, st.integers(0, 3), st.booleans())
def test_loose_tags_read_like_strict_ones(trace, style, upper):
    text = render_trace(trace)
    for place in range(1, 5):
        loose = (f"Step {place}", f"step_{place}", f"Step{place}:", f" Step-{place} ")[style]
        text = text.replace(f"<Step{place}>", f"<{loose}>").replace(
            f"</Step{place}>", f"</{loose}>"
        )
    for name in ("Key", "Cause", "Correction", "Generalized", "Answer"):
        other = name.upper() if upper else f"{name}:"
        text = text.replace(f"<{name}>", f"<{other}>").replace(f"</{name}>", f"</{other}>")
    assert parse_trace(text) == trace


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("<>/Step1KeyAnswr: 2"), max_size=60))
def test_any_text_parses(text):
    assert isinstance(parse_trace(text), Trace)


def test_unclosed_elements_end_where_the_next_begins():
    trace = parse_trace("<Step1>a<Key>k<Step2>b<Cause>c<Correction>d<Answer>3")
    assert trace == Trace((Step("a", key="k"), Step("b", cause="c", correction="d")), answer="3")


def test_inequalities_are_text():
    assert (
        parse_trace("<Step1>if x < 3 and y<Step_2 then</Step1>")
        .steps[0]
        .text.startswith("if x < 3")
    )


def test_the_last_answer_wins():
    assert parse_trace("<Answer>1</Answer> wait <Answer>2</Answer>").answer == "2"


def test_an_annotation_after_a_closed_step_belongs_to_it():
    trace = parse_trace("<Step1>a</Step1><Cause>c</Cause><Correction>d</Correction>")
    assert trace.steps == (Step("a", cause="c", correction="d"),)


def test_faults_name_what_is_missing():
    assert trace_faults(Trace(())) == ["no step", "no generalisation", "no answer"]
    good = Trace((Step("a"),), "g", "1")
    assert trace_faults(good) == []
    assert trace_faults(Trace((Step("a", cause="c"),), "g", "1")) == [
        "step 1 has a cause without a correction"
    ]
    assert trace_faults(Trace((Step("a"),), None, "1"), generalized=False) == []


def test_a_solution_without_tags_gives_its_lines():
    assert solution_steps("2+3=5\n\n 5*4=20 ") == ("2+3=5", "5*4=20")
    assert solution_steps("<Step1>a</Step1>") == ("a",)
