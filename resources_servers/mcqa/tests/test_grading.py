r"""Texts as models write them: the letter that is read, or None where it would be a guess."""

import importlib

import pytest

from rollout_kit.serving.registry import load

grading = importlib.import_module(
    ".grading", load("resources_servers", "mcqa").__module__.rpartition(".")[0]
)
extract, match_patterns = grading.extract, grading.match_patterns

SPEEDS = [{"A": "4 m/s"}, {"B": "8 m/s"}, {"C": "16 m/s"}, {"D": "32 m/s"}]
TRENDS = [{"A": "increases"}, {"B": "decreases"}, {"C": "stays the same"}, {"D": "none"}]
NUMBERS = [{"A": "4"}, {"B": "40"}, {"C": "5"}, {"D": "7"}]
FORMULAS = [{"A": "x+1"}, {"B": "x-1"}, {"C": "(x+1)(x-1)"}, {"D": "x"}]
SIGNED = [{"A": "3"}, {"B": "-3"}, {"C": "1/3"}]
CITIES = [{"A": "Paris"}, {"B": "New York"}, {"C": "London"}, {"D": "York"}]
TEN = [{letter: f"option text {letter}"} for letter in "ABCDEFGHIJ"]


@pytest.mark.parametrize(
    ("options", "text", "letter"),
    [
        (SPEEDS, r"\boxed{\textbf{(B)}}", "B"),
        (SPEEDS, r"\boxed{\mathbf{(B)}}", "B"),
        (SPEEDS, r"\boxed{B!}", "B"),
        (SPEEDS, r"\boxed{\text{(B)}\ 8\text{ m/s}}", "B"),
        (SPEEDS, r"\boxed{(B) 8 m/s}", "B"),
        (SPEEDS, r"\boxed{\text{Option B}}", "B"),
        (SPEEDS, r"\boxed{{\bf B}}", "B"),
        (SPEEDS, r"\boxed{\bf{B}}", "B"),
        (SPEEDS, r"\boxed{\textcolor{red}{B}}", "B"),
        (SPEEDS, r"\boxed{\color{red}B}", "B"),
        (SPEEDS, r"\boxed{$B$}", "B"),
        (SPEEDS, r"\boxed{\left(B\right)}", "B"),
        (SPEEDS, r"\boxed{\boxed{B}}", "B"),
        (SPEEDS, r"\boxed{\mathrm{B}\;}", "B"),
        (SPEEDS, r"\boxed{\text{B}: 8\,\text{m/s}}", "B"),
        (SPEEDS, r"\boxed{\mathbf{B}\text{. }8}", "B"),
        (SPEEDS, r"\boxed{\text{\textbf{B}}}", "B"),
        (SPEEDS, r"\boxed{\text{ B }}", "B"),
        (SPEEDS, r"\boxed{\textbf{B: }8 \text{ m/s}}", "B"),
        (SPEEDS, r"\boxed{B \quad 8 m/s}", "B"),
        (SPEEDS, r"\boxed{**B**}", "B"),
        (SPEEDS, r"\boxed{\text{Answer: B}}", "B"),
        (SPEEDS, r"\boxed{\large B}", "B"),
        (SPEEDS, r"\boxed{\mathit{B}}", "B"),
        (SPEEDS, r"\boxed{\displaystyle B}", "B"),
        (SPEEDS, r"\boxed{\operatorname*{B}}", "B"),
        (SPEEDS, r"\boxed{`B`}", "B"),
        (SPEEDS, r"\boxed{B - 8 m/s}", "B"),
        (SPEEDS, r"\boxed{B-8 m/s}", "B"),
        (SPEEDS, r"\boxed{\text{B}\,(8\text{ m/s})}", "B"),
        (SPEEDS, r"\boxed{\mathbf{B}=8}", "B"),
        (SPEEDS, r"\boxed{'B'}", "B"),
        (SPEEDS, r"\boxed {B}", "B"),
        (SPEEDS, r"\boxed{\textsc{B}}", "B"),
        (SPEEDS, r"\boxed{\colorbox{yellow}{B}}", "B"),
        (SPEEDS, r"\boxed{\text{The answer is B}}", "B"),
    ],
)
def test_a_box_gives_its_letter_in_any_formatting(options, text, letter):
    assert extract(text, options, "strict_single_letter_boxed") == letter


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (SPEEDS, r"\boxed{\Delta B}"),
        (SPEEDS, r"\boxed{\vec{B}}"),
        (SPEEDS, r"\boxed{\text{A and B}}"),
        (SPEEDS, r"\boxed{\textbf{A}\textbf{B}}"),
        (SPEEDS, r"\boxed{\text{A, B}}"),
        (SPEEDS, r"\boxed{A. B}"),
        (SPEEDS, r"\boxed{\text{A) and C)}}"),
        (SPEEDS, r"\boxed{A-D}"),
        (SPEEDS, r"\boxed{2B}"),
        (SPEEDS, r"\boxed{B^2}"),
        (SPEEDS, r"\boxed{B_1}"),
        (SPEEDS, r"\boxed{-B}"),
        (SPEEDS, r"\boxed{5\text{ C}}"),
        (SPEEDS, r"\boxed{\text{Because}}"),
        (SPEEDS, r"\boxed{\text{not B}}"),
        (SPEEDS, r"\boxed{\neg B}"),
        (SPEEDS, r"\boxed{\overline{B}}"),
        (SPEEDS, r"\boxed{\hat{B}}"),
        (SPEEDS, r"\boxed{\text{A city}}"),
        (SPEEDS, r"\boxed{\text{B or C}}"),
        (SPEEDS, r"\boxed{A: 4 m/s, C: 16 m/s}"),
        (SPEEDS, r"\boxed{\mathbf{c}}"),
        (SPEEDS, r"\boxed{\frac{B}{2}}"),
        (SPEEDS, r"\boxed{\text{B cells}}"),
        (SPEEDS, r"\boxed{\text{E}}"),
        (SPEEDS, r"\boxed{\text{Bob}}"),
        (SPEEDS, r"\boxed{\mathcal{B}}"),
        (SPEEDS, r"\boxed{P(B)}"),
        (SPEEDS, r"\boxed{\sin B}"),
        (SPEEDS, r"\boxed{\text{8 m/s}}"),
        (SPEEDS, r"\boxed{\text{D/H}}"),
        (SPEEDS, r"\boxed{A\,B}"),
        (SPEEDS, r"\boxed{\text{BC}}"),
        (SPEEDS, r"\boxed{B'}"),
        (SPEEDS, r"\boxed{|B|}"),
        (SPEEDS, r"\boxed{B\%}"),
        (SPEEDS, r"\boxed{25 \mathrm{C}}"),
        (SPEEDS, r"\boxed{20^\circ\text{C}}"),
        (SPEEDS, r"\boxed{\mathbb{C}}"),
        (SPEEDS, r"\boxed{C(x)}"),
        (SPEEDS, r"\boxed{C \neq D}"),
        (SPEEDS, r"\boxed{\text{None of A, B, C}}"),
    ],
)
def test_a_box_gives_no_letter_of_a_list_a_formula_or_a_word(options, text):
    assert extract(text, options, "strict_single_letter_boxed") is None


@pytest.mark.parametrize(
    ("options", "text", "letter"),
    [
        (SPEEDS, r"\boxed{8\text{ m/s}}", "B"),
        (SPEEDS, r"\boxed{8\,\mathrm{m/s}}", "B"),
        (SPEEDS, r"\boxed{8~m/s}", "B"),
        (SPEEDS, r"\boxed{8m/s}", "B"),
        (SPEEDS, r"\boxed{v = 8\ \text{m/s}}", "B"),
        (SPEEDS, r"\boxed{\text{The speed is 4 m/s.}}", "A"),
        (SPEEDS, r"\boxed{16 m/s}", "C"),
        (SPEEDS, r"\boxed{\text{B}}", "B"),
        (SPEEDS, r"\boxed{\textbf{8 m/s}}", "B"),
        (TRENDS, r"\boxed{decreases}", "B"),
        (TRENDS, r"\boxed{It decreases.}", "B"),
        (TRENDS, r"\boxed{It stays the same}", "C"),
        (TRENDS, r"\boxed{none}", "D"),
        (TRENDS, r"\boxed{\text{The pressure decreases}}", "B"),
        (NUMBERS, r"\boxed{4}", "A"),
        (NUMBERS, r"\boxed{40}", "B"),
        (NUMBERS, r"\boxed{x=40}", "B"),
        (NUMBERS, r"\boxed{\$4}", "A"),
        (NUMBERS, r"\boxed{4 apples}", "A"),
        (NUMBERS, r"\boxed{5.}", "C"),
        (NUMBERS, r"\boxed{{4}}", "A"),
        (CITIES, r"\boxed{the city of New York}", "B"),
        (CITIES, r"\boxed{York}", "D"),
        (SIGNED, r"\boxed{−3}", "B"),
        (FORMULAS, r"\boxed{x - 1}", "B"),
        (FORMULAS, r"\boxed{(x + 1)(x - 1)}", "C"),
        (FORMULAS, r"\boxed{x}", "D"),
        (SIGNED, r"\boxed{- 3}", "B"),
        (SIGNED, r"\boxed{3}", "A"),
        (SIGNED, r"\boxed{1/3}", "C"),
        (CITIES, r"\boxed{New York}", "B"),
        (CITIES, r"\boxed{the city of London}", "C"),
    ],
)
def test_a_lenient_box_gives_the_option_that_it_names(options, text, letter):
    assert extract(text, options, "lenient_boxed") == letter


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (SPEEDS, r"\boxed{\approx 4 m/s}"),
        (SPEEDS, r"\boxed{64 m/s}"),
        (SPEEDS, r"\boxed{-4 m/s}"),
        (SPEEDS, r"\boxed{- 4 m/s}"),
        (SPEEDS, r"\boxed{0.4 m/s}"),
        (SPEEDS, r"\boxed{1,4 m/s}"),
        (SPEEDS, r"\boxed{4 m/s^2}"),
        (SPEEDS, r"\boxed{14 m/s}"),
        (SPEEDS, r"\boxed{2 \times 4 m/s}"),
        (SPEEDS, r"\boxed{4 m/s or 8 m/s}"),
        (SPEEDS, r"\boxed{not 4 m/s}"),
        (SPEEDS, r"\boxed{116 m/s}"),
        (SPEEDS, r"\boxed{more than 4 m/s}"),
        (SPEEDS, r"\boxed{4 m/sec}"),
        (SPEEDS, r"\boxed{10^4 m/s}"),
        (SPEEDS, r"\boxed{4 m/s + 1}"),
        (SPEEDS, r"\boxed{4 m/s, not 8 m/s}"),
        (TRENDS, r"\boxed{It never increases}"),
        (TRENDS, r"\boxed{does not decrease}"),
        (TRENDS, r"\boxed{\text{It doesn't stay the same; increases}}"),
        (TRENDS, r"\boxed{increases then decreases}"),
        (TRENDS, r"\boxed{increasesly}"),
        (TRENDS, r"\boxed{no longer increases}"),
        (TRENDS, r"\boxed{rather increases than decreases}"),
        (NUMBERS, r"\boxed{15}"),
        (NUMBERS, r"\boxed{400}"),
        (NUMBERS, r"\boxed{4.0}"),
        (NUMBERS, r"\boxed{45}"),
        (NUMBERS, r"\boxed{4,5}"),
        (NUMBERS, r"\boxed{-5}"),
        (NUMBERS, r"\boxed{7/2}"),
        (NUMBERS, r"\boxed{7!}"),
        (NUMBERS, r"\boxed{7\%}"),
        (FORMULAS, r"\boxed{x+10}"),
        (FORMULAS, r"\boxed{2x}"),
        (FORMULAS, r"\boxed{x - 2}"),
        (TRENDS, r"\boxed{fails to increases}"),
        (NUMBERS, r"\boxed{1{,}7}"),
        (NUMBERS, r"\boxed{7e5}"),
        (NUMBERS, r"\boxed{\log 7}"),
        (NUMBERS, r"\boxed{7 \cdot 10^8}"),
        (SPEEDS, r"\boxed{8 m/s/s}"),
        (TRENDS, r"\boxed{It hardly increases}"),
        (TRENDS, r"\boxed{anything but increases}"),
        (TRENDS, r"\boxed{unlikely increases}"),
        (CITIES, r"\boxed{Paris or London}"),
    ],
)
def test_a_lenient_box_gives_no_option_that_is_negated_or_part_of_another_value(options, text):
    assert extract(text, options, "lenient_boxed") is None


@pytest.mark.parametrize(
    ("options", "text", "letter"),
    [
        (SPEEDS, "Answer: **B**", "B"),
        (SPEEDS, "Answer: (B)", "B"),
        (SPEEDS, "Answer: b.", "B"),
        (SPEEDS, "Answer: B) 8 m/s", "B"),
        (SPEEDS, "Answer: (B) 8 m/s", "B"),
        (SPEEDS, "**Answer:** B", "B"),
        (SPEEDS, "**Answer: B**", "B"),
        (SPEEDS, "Answer: 8 m/s", "B"),
        (SPEEDS, "Answer: 8 m/s.", "B"),
        (SPEEDS, "Answer: `8 m/s`", "B"),
        (SPEEDS, r"Answer: \(B\)", "B"),
        (SPEEDS, r"Answer: $\boxed{B}$", "B"),
        (SPEEDS, "Answer：B", "B"),
        (SPEEDS, "Answer: A\nAnswer: B", "B"),
        (SPEEDS, "Answer: B\nThis answer: a proof follows.", "B"),
        (SPEEDS, "Answer:\nB", "B"),
        (SPEEDS, "Answer: **B) 8 m/s**", "B"),
        (SPEEDS, "Answer: Option B", "B"),
        (SPEEDS, r"Answer: \textbf{B}", "B"),
        (TRENDS, "Answer: decreases.", "B"),
        (TRENDS, "Answer: **decreases**", "B"),
        (TRENDS, 'Answer: "decreases"', "B"),
        (TRENDS, "Answer: “decreases”.", "B"),
    ],
)
def test_the_last_answer_is_a_letter_or_an_option_in_any_formatting(options, text, letter):
    assert extract(text, options, "lenient_answer_colon") == letter


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (SPEEDS, "Answer: A or B"),
        (SPEEDS, "Answer: A\nAnswer: A or B"),
        (SPEEDS, "Answer: I think B"),
        (SPEEDS, "Answer: A\nAnswer: I think B"),
        (SPEEDS, "Answer: E"),
        (SPEEDS, "Answer: not B"),
        (SPEEDS, "Answer: 48 m/s"),
        (TRENDS, "Answer: It decreases"),
    ],
)
def test_an_answer_in_prose_or_with_several_letters_is_not_exact(options, text):
    assert extract(text, options, "lenient_answer_colon") is None


@pytest.mark.parametrize(
    ("options", "text", "letter"),
    [
        (SPEEDS, "Answer: I think D", "D"),
        (TRENDS, "Answer: B-decreases", "B"),
        (TRENDS, "Answer: A increases", "A"),
        (SPEEDS, "Answer: (C) I and II", "C"),
        (SPEEDS, "Answer： D", "D"),
        (SPEEDS, "Answer: I would pick B — a safe choice.", "B"),
        (SPEEDS, "Answer: D, I think", "D"),
        (SPEEDS, "Answer: D. I am sure.", "D"),
        (SPEEDS, "Answer: A safe choice is B", "B"),
        (SPEEDS, "Answer: A because B is wrong", "A"),
        (SPEEDS, "Answer: A", "A"),
        (SPEEDS, "Answer: a", "A"),
        (SPEEDS, "Answer: (b)", "B"),
        (SPEEDS, "Answer: not A but D", "D"),
        (SPEEDS, "Answer: The answer is D, not A", "D"),
        (SPEEDS, "Answer: B rather than A", "B"),
        (SPEEDS, "Answer: the right one is D.", "D"),
        (SPEEDS, "Answer: A is wrong, so B", "B"),
        (SPEEDS, "**Answer:**\n\nD", "D"),
        (SPEEDS, r"Answer: $\boxed{\text{D}}$", "D"),
        (SPEEDS, r"Answer: \textbf{D}", "D"),
        (SPEEDS, "Answer: D) 32 m/s", "D"),
        (SPEEDS, "Answer: [D]", "D"),
        (SPEEDS, "Answer: I believe the answer is C", "C"),
        (SPEEDS, "Answer: I'd go with C", "C"),
        (SPEEDS, "Answer: I’m going with (C)", "C"),
        (SPEEDS, "Answer: It is C", "C"),
        (SPEEDS, "Answer: C - a guess", "C"),
        (SPEEDS, "Answer: C, since A and B are too small", "C"),
        (SPEEDS, "Answer: D (I am certain)", "D"),
        (SPEEDS, "Answer: B, a safe choice", "B"),
        (SPEEDS, "answer: c is correct", "C"),
        (SPEEDS, "Answer: C maybe D", "C"),
        (TEN, "Answer: I computed the integral, hence C.", "C"),
        (TEN, "Answer: I", "I"),
        (TEN, "Answer: I think I", "I"),
        (TEN, "Answer: (I)", "I"),
        (TEN, "Answer: I is correct", "I"),
        (TEN, "Answer: I am sure that it is H", "H"),
        (TEN, "Answer: I, because", "I"),
        (TEN, "Answer: **I**", "I"),
        (TEN, "Answer: I option text I", "I"),
        (TEN, "Answer: A option text A", "A"),
        (TEN, "Answer: D and I think so", "D"),
    ],
)
def test_prose_after_the_last_answer_gives_its_letter(options, text, letter):
    assert extract(text, options, "lenient_answer_colon_md") == letter


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (SPEEDS, "**Answer: D/H**"),
        (SPEEDS, "Answer: C or D"),
        (SPEEDS, "Answer: Both C and D"),
        (SPEEDS, "Answer: (C) or (D)"),
        (SPEEDS, "Answer: **C** or **D**"),
        (SPEEDS, "Answer: option C or option D"),
        (SPEEDS, "Answer: not B"),
        (SPEEDS, "Answer: It isn't B"),
        (SPEEDS, "Answer: N/A"),
        (SPEEDS, "Answer: H/D"),
        (SPEEDS, "Answer: D & H"),
        (SPEEDS, "Answer: 5 A"),
        (SPEEDS, "Answer: A or B or C"),
        (SPEEDS, "Answer: C, D"),
        (SPEEDS, "Answer: B\nAnswer: C or D"),
        (SPEEDS, "Answer: I"),
        (SPEEDS, "Answer: B-cells"),
        (TRENDS, "Answer: A stays the same"),
        (SPEEDS, "Answer: either C or D"),
        (SPEEDS, "Answer: C and/or D"),
        (SPEEDS, "Answer: C|D"),
        (SPEEDS, "Answer: all of A, B and C"),
        (SPEEDS, "Answer: A detailed look shows the second"),
        (SPEEDS, "Answer: neither A nor B"),
        (SPEEDS, "Answer: C++"),
        (SPEEDS, "Answer: I doubt B"),
        (SPEEDS, "Answer: D > A"),
        (SPEEDS, "Answer: **A** and **D**"),
        (SPEEDS, "Answer: It can't be B"),
        (SPEEDS, "Answer: B is wrong"),
        (SPEEDS, "Answer: I would say neither B nor C"),
        (SPEEDS, "Answer: C (or D)"),
        (SPEEDS, "Answer: C, possibly D"),
        (TEN, "Answer: I believe it"),
        (TEN, "**Answer: D/H**"),
        (TEN, "Answer: D or I"),
        (TEN, "Answer: I or D"),
        (TEN, "Answer: D, I"),
    ],
)
def test_prose_gives_no_letter_of_a_list_a_word_or_a_rejected_option(options, text):
    assert extract(text, options, "lenient_answer_colon_md") is None


def test_a_label_that_begins_the_text_of_an_option_is_no_label():
    options = [{"A": "E. coli"}, {"E": "yeast"}]
    assert extract(r"\boxed{E. coli}", options, "strict_single_letter_boxed") is None
    assert extract(r"\boxed{E. coli}", options, "lenient_boxed") == "A"
    assert extract(r"\boxed{E. yeast}", options, "strict_single_letter_boxed") == "E"


@pytest.mark.parametrize(
    ("prefix", "text", "letter"),
    [
        ("answer is", "The answer is (C).", "C"),
        ("La réponse est", "La réponse est (B).", "B"),
        ("答えは", "段階的に考える。答えは（C）です。", "C"),
        ("उत्तर है", "उत्तर है (I)", "I"),
        ("answer is", "The answer is A.\nNo, the answer is\nD", "D"),
        ("answer is", "Answer: A\nThe answer is B", "B"),
        ("answer is", r"\boxed{H}", "H"),
        ("", r"\boxed{H}", None),
        ("答えは", "答えは A/D/E/F です。", None),
        ("answer is", r"The answer is A or B. \boxed{A}", "A"),
    ],
)
def test_the_markdown_mode_also_reads_after_the_rows_prefix(prefix, text, letter):
    assert extract(text, TEN, "lenient_answer_colon_md", prefix) == letter


def test_patterns_may_capture_formatting():
    patterns = [r"Choice: (.+)"]
    for text in (r"Choice: \textbf{(B)}", "Choice: **b**.", "choice: `8 m/s`"):
        assert match_patterns(patterns, text, SPEEDS) == "B"
    assert match_patterns(patterns, "Choice: A or B", SPEEDS) is None


@pytest.mark.parametrize(
    "mode", ["lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"]
)
@pytest.mark.parametrize(
    "part", ["\\text{", "{", "answer:", "A or ", "8 m/s ", " ", "\n", "*", "\\color{"]
)
def test_long_answers_take_linear_time(mode, part):
    """Quadratic time would take minutes."""
    long = part * (200_000 // len(part))
    closed = long + "C" + "}" * long.count("{")
    for text in (rf"\boxed{{{closed}}}", f"Answer: {closed}", f"answer is {closed}"):
        extract(text, SPEEDS, mode, "answer is")
